"use strict";
// What a cohort's page does besides: a link to a case opens it.

(() => {
  const open = () => {
    const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!(found instanceof HTMLDetailsElement)) return;
    found.open = true;
    found.scrollIntoView();
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => { // a link to where the page is already
    if (event.target.closest?.('a[href^="#case-"]')?.hash === location.hash) open();
  });
  open();
})();
