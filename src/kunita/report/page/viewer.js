// The viewer: one place of the fixed space is looked at; planes or volumes show it, and numbers say what is known there.

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const signed = (text) => (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
const number = (x) => signed(x !== 0 && Math.abs(x) < 0.1 ? x.toPrecision(2) : x.toFixed(Math.abs(x) < 100 ? 2 : 1));
const decimals = Math.max(1, Math.ceil(1 - Math.log10(data.stepMm || 1))); // of a place: a tenth of a step
const numbers = (point) => point.map((x) => signed(x.toFixed(Math.max(2, decimals)))).join(", ");

const turned = (vector) => data.reach.turn.map((row) => row.reduce((sum, a, k) => sum + a * vector[k], 0));

// Measured after the alignment, which alters distances only if it scales.
function nearestLandmark(from) {
  let best = null;
  data.landmarks.forEach((one) => {
    const distance = Math.hypot(...turned(one.moving.map((x, k) => x - from[k])));
    if (one.used && (!best || distance < best.distance)) best = { distance, name: one.name };
  });
  return best;
}

// How far a moving point is outside the landmarks' hull, at least; 0 inside.
function outsideHull(from) {
  const place = turned(from);
  return Math.max(0, ...data.reach.sides.map((side) => place.reduce((sum, x, k) => sum + x * side[k], side[side.length - 1])));
}

// How far a moving point is from everything that the fit rests on: landmarks, and nodes that images inform.
function farFromAll(from, near) {
  const nodes = data.reach.nodes.map((node) => Math.hypot(...turned(node.map((x, k) => x - from[k]))));
  return nodes.reduce((least, distance) => Math.min(least, distance), near ? near.distance : Infinity);
}

function remarksOn(from, near) {
  const { far, beyond, one, region } = data.reach, outside = outsideHull(from);
  if (far !== null && farFromAll(from, near) > far) return `Farther than a length scale from every ${one}: this rests on the prior.`;
  if (beyond !== null && outside > beyond) return `${number(outside)} mm outside ${region}: this rests on the prior.`;
  return null;
}

function facts(known, label) {
  const near = nearestLandmark(known.from), rows = [
    ["fixed", `${numbers(known.point)} mm`],
    ["comes from", `${numbers(known.from)} mm`],
    ["displacement", `${number(known.length)} mm (${numbers(known.displacement)})`],
    ["standard deviation", `${number(known.std)} mm`, "std"],
    ["95 % radius", `${number(known.radius)} mm`, "radius"],
    ["volume change", `× ${known.jacobian.toFixed(3)}`],
  ];
  if (near) rows.push(["nearest landmark", `${near.name}, ${number(near.distance)} mm`]);
  if (label) rows.push(["label", label]);
  return { rows, far: remarksOn(known.from, near) };
}

function tell(known, label) {
  const list = element("here");
  list.replaceChildren();
  const put = (tag, text, name) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (name) made.className = name;
    list.append(made);
    return made;
  };
  if (!known) {
    put("dt", "outside");
    put("dd", "This page carries nothing there.");
    return;
  }
  const { rows, far } = facts(known, label);
  rows.forEach(([name, text, id]) => {
    put("dt", name);
    const value = put("dd", text, id ? "strong" : "");
    if (id) value.id = `here-${id}`;
  });
  if (far) put("dd", far, "far");
}

const atPlace = (readout, point, label) => {
  const known = readout.at(point);
  tell(known, label);
  [...document.querySelectorAll("#go input")].forEach((input, k) => { input.value = signed(point[k].toFixed(decimals)).replace("−", "-"); });
  return known;
};

function onPlaces(goTo) {
  element("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const inputs = [...document.querySelectorAll("#go input")];
    const point = inputs.map((input) => (input.value.trim() ? Number(input.value.replace(",", ".").replace("−", "-")) : NaN));
    inputs.forEach((input, k) => input.setAttribute("aria-invalid", String(!Number.isFinite(point[k]))));
    if (point.every(Number.isFinite)) goTo(point);
  });
}

function onFlicker(set) {
  const button = element("flicker"), slider = element("warped");
  if (!button) return;
  let timer = null;
  const swap = () => { slider.value = Number(slider.value) < 50 ? 100 : 0; set(Number(slider.value) / 100); };
  button.addEventListener("click", () => {
    if (timer) { clearInterval(timer); timer = null; } else { swap(); timer = setInterval(swap, 700); }
    button.setAttribute("aria-pressed", String(Boolean(timer)));
  });
}

const AXES = { axial: [0, 1, 2], coronal: [0, 2, 1], sagittal: [1, 2, 0] };
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

// ------------------------------------------------------------------------------------------------------------- planes

function lookAtPlanes(readout) {
  const planes = [...document.querySelectorAll(".stage svg.plane")], size = data.stepMm;
  let here = data.start;
  const axes = (plane) => ["right", "up", "across"].map((name) => (plane.dataset[name] === "" ? null : Number(plane.dataset[name])));
  const down = (plane) => Number(plane.dataset.down);
  const cross = (plane) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("class", "cursor");
    plane.append(made);
    return made;
  };
  const crosses = planes.map(cross);
  const goTo = (point) => {
    here = point;
    planes.forEach((plane, k) => {
      const [right, up] = axes(plane), x = point[right], y = down(plane) * point[up], r = 3 * size;
      crosses[k].setAttribute("d", `M${x - r} ${y}H${x + r}M${x} ${y - r}V${y + r}`);
    });
    atPlace(readout, point);
  };
  planes.forEach((plane) => {
    const [right, up, across] = axes(plane);
    plane.setAttribute("tabindex", "0");
    plane.addEventListener("click", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse());
      const point = [...here];
      point[right] = place.x;
      point[up] = down(plane) * place.y;
      if (across !== null) point[across] = Number(plane.dataset.level);
      goTo(point);
    });
    plane.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      const point = [...here];
      point[right] += step[0] * size;
      point[up] += -down(plane) * step[1] * size;
      if (across !== null) point[across] = Number(plane.dataset.level);
      goTo(point);
    });
  });
  const layer = (name, share) => document.querySelectorAll(`.stage .layer.${name}`).forEach((one) => { one.style.opacity = share; });
  const pictures = Boolean(document.querySelector(".stage .layer.fixed, .stage .layer.warped"));
  const slide = (id, name) => {
    const slider = element(id);
    if (!slider) return;
    const set = () => {
      layer(name, Number(slider.value) / 100);
      if (id === "colours") planes.forEach((plane) => plane.classList.toggle("on-picture", pictures && Number(slider.value) < 60));
    };
    slider.addEventListener("input", set);
    set();
  };
  slide("warped", "warped");
  slide("colours", "colours");
  onFlicker((share) => layer("warped", share));
  ["grid", "landmarks", "paths", "outlines"].forEach((name) => {
    const box = element(`show-${name}`);
    if (!box) return;
    const set = () => document.querySelector(".stage").classList.toggle(`hide-${name}`, !box.checked);
    box.addEventListener("change", set);
    set();
  });
  onPlaces(goTo);
  return { goTo };
}

// ------------------------------------------------------------------------------------------------------------ volumes

const LEVELS = ["below 5 %", "5 to 50 %", "50 to 95 %", "above 95 %"];
const OUTLINES = { // 0 to 3: inside so many of the borders, not drawn; 4 to 6: at the border of 5, 50, 95 %
  R: [0, 0, 0, 0, 86, 230, 204], G: [0, 0, 0, 0, 180, 159, 121], B: [0, 0, 0, 0, 233, 0, 167],
  A: [0, 0, 0, 0, 255, 255, 255], I: [0, 1, 2, 3, 4, 5, 6], labels: ["", "", "", "", "5 %", "50 %", "95 %"],
};
const OPTIONS = {
  isSliceMM: true, backColor: [0, 0, 0, 1], crosshairColor: [1, 0.25, 0.2, 0.9], crosshairWidth: 1, loadingText: "", logLevel: "error",
  dragAndDropEnabled: false, multiplanarShowRender: 0, multiplanarPadPixels: 4, meshThicknessOn2D: 6,
  meshXRay: 0.4, isColorbar: false, scrollRequiresFocus: true, show3Dcrosshair: true, isRadiologicalConvention: false, fontColor: [1, 1, 1, 1],
};

async function volumeOf(name) {
  const found = data.volumes[name], image = await niivue.NVImage.loadFromBase64({
    base64: element(`blob-${name}`).textContent.trim(), name: `${name}.nii.gz`, trustCalMinMax: false,
    colormap: name === "radius" ? "viridis" : "gray", opacity: { fixed: 1, warped: 0, radius: 0.35, label: 1 }[name],
    ...(found.top === null ? {} : { cal_min: 0, cal_max: found.top }),
  });
  if (name === "label") image.setColormapLabel(OUTLINES);
  return image;
}

function spheres(nv, name, colour, landmarks) {
  nv.addColormap(name, { R: [colour[0], colour[0]], G: [colour[1], colour[1]], B: [colour[2], colour[2]], A: [255, 255], I: [0, 255] });
  return nv.loadConnectomeAsMesh({
    name, nodeColormap: name, nodeColormapNegative: name, nodeMinColor: 0, nodeMaxColor: 2, nodeScale: 3, edgeColormap: name,
    edgeColormapNegative: name, edgeMin: 0, edgeMax: 1, edgeScale: 1, showLegend: false, legendLineThickness: 0, edges: [],
    nodes: landmarks.map(({ name: title, predicted: [x, y, z], std }) => ({ name: title, x, y, z, colorValue: 1, sizeValue: std })),
  });
}

async function lookAtVolumes(readout) {
  const program = document.createElement("script");
  program.textContent = new TextDecoder().decode(await inflated("blob-niivue"));
  document.head.append(program);
  const canvas = element("canvas"), nv = new niivue.Niivue(OPTIONS), names = Object.keys(data.volumes);
  await nv.attachToCanvas(canvas);
  if (!nv.gl) throw new Error("this browser has no WebGL 2");
  const images = await Promise.all(names.map(volumeOf));
  nv.volumes = images; // all at once: adding them one by one would draw everything again each time
  nv.setVolume(images[0], 0);
  const sets = [["kunita-landmarks", [230, 159, 0], false], ["kunita-suspects", [255, 95, 176], true]];
  const meshes = sets.map(([name, colour, doubt]) => [name, colour, data.landmarks.filter((one) => one.suspect === doubt)])
    .filter(([, , some]) => some.length).map((set) => spheres(nv, ...set));
  meshes.forEach((mesh) => nv.addMesh(mesh));
  return connected(nv, canvas, names, meshes, readout);
}

function connected(nv, canvas, names, meshes, readout) {
  const index = (name) => names.indexOf(name), opacity = (name, share) => nv.setOpacity(index(name), share);
  const goTo = (point) => {
    nv.scene.crosshairPos = nv.mm2frac(point, 0, true);
    nv.createOnLocationChange();
    nv.drawScene();
  };
  nv.onLocationChange = (place) => {
    const value = index("label") < 0 ? null : place.values[index("label")].value;
    atPlace(readout, [...place.mm].slice(0, 3), value === null ? null : LEVELS[value > 3 ? Math.round(value) - 3 : Math.round(value)]);
  };
  const slide = (id, name) => {
    const slider = element(id);
    if (slider) slider.addEventListener("input", () => opacity(name, Number(slider.value) / 100));
  };
  slide("warped", "warped");
  slide("colours", "radius");
  onFlicker((share) => opacity("warped", share));
  const label = element("show-label");
  if (label) label.addEventListener("change", () => opacity("label", label.checked ? 1 : 0));
  element("spheres")?.addEventListener("change", (event) => {
    const scale = Number(event.target.value);
    meshes.forEach((mesh) => {
      nv.setMeshProperty(mesh.id, "visible", scale > 0);
      if (scale > 0) nv.setMeshProperty(mesh.id, "nodeScale", scale);
    });
  });
  const kinds = { slices: nv.sliceTypeMultiplanar, axial: nv.sliceTypeAxial, coronal: nv.sliceTypeCoronal, sagittal: nv.sliceTypeSagittal, render: nv.sliceTypeRender };
  element("layout").addEventListener("change", (event) => {
    const whole = event.target.value === "render"; // in 3-D the colours would hide everything
    opacity("radius", whole ? 0 : Number(element("colours").value) / 100);
    nv.setSliceType(kinds[event.target.value]);
  });
  canvas.addEventListener("keydown", (event) => {
    const depth = { PageUp: 1, PageDown: -1 }[event.key], step = STEPS[event.key] || (depth && [0, 0]);
    if (!step) return;
    event.preventDefault();
    const [right, up, across] = AXES[element("layout").value] || AXES.axial;
    const point = [...nv.frac2mm(nv.scene.crosshairPos, 0, true)].slice(0, 3);
    point[right] += step[0] * data.stepMm;
    point[up] += step[1] * data.stepMm;
    point[across] += (depth || 0) * data.stepMm;
    goTo(point);
  });
  onPlaces(goTo);
  return { goTo, nv };
}

// ------------------------------------------------------------------------------------------------------------- begin

// The names in the tables lead the viewer to their places.
function onNames(tableId, places, goTo) {
  const byName = new Map(places.map(({ name, place }) => [name, place]));
  document.querySelectorAll(`#${tableId} tbody th`).forEach((cell) => {
    const place = byName.get(cell.textContent), button = document.createElement("button");
    if (!place) return;
    button.type = "button";
    button.className = "place";
    button.textContent = cell.textContent;
    button.addEventListener("click", () => {
      goTo(place);
      element("viewer").scrollIntoView({ block: "start" });
    });
    cell.replaceChildren(button);
  });
}

async function begin() {
  const buffer = await inflated("blob-readout"), readout = new Readout(data.readout, new Float32Array(buffer));
  const look = data.kind === "volume" ? await lookAtVolumes(readout) : lookAtPlanes(readout);
  look.goTo(data.start);
  onNames("landmark-table", data.landmarks.map(({ name, predicted }) => ({ name, place: predicted })), look.goTo);
  onNames("target-table", data.targets, look.goTo);
  if (element("waiting")) element("waiting").remove();
  return { readout, ...look };
}

window.kunita = { ready: data.kind === "none" ? Promise.resolve({}) : begin() };
window.kunita.ready.then(() => { document.documentElement.dataset.ready = "yes"; }, (error) => {
  const place = element("waiting") || element("here");
  place.textContent = `The viewer could not start: ${error.message}. Figures and numbers below do not need it.`;
  place.classList.add("failed");
  document.documentElement.dataset.ready = "failed";
});
