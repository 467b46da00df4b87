"""The pages of a cohort: one file that asks for nothing, whose links lead somewhere, and in which
names are text."""

import dataclasses
import functools
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import kunita
from kunita.cohort.baselines import rigid, without_each
from kunita.cohort.prior import Lesson, cohort_profile
from kunita.cohort.study import PAPER, Trained, held_by_prior, study, without_covariances
from kunita.cohort.study_findings import OWN, Learning
from kunita.cohort.study_tables import Collected, coverage_band
from kunita.data.landmarks import Landmarks
from kunita.figures.cohort import LONGEST_NAME
from kunita.figures.themed import VARIABLES, shortened, text_width
from kunita.inference.intervals import EstimatedParameter
from kunita.loo import Settings, experiment_of
from kunita.phantoms.cohorts import generated_cohort
from kunita.prior import Prior
from kunita.report.cohort_answer import calibration_badge
from kunita.report.cohort_page import Learned, Studied, prior_page, study_page
from kunita.scores import case_draws

N = 12
HOSTILE = (
    "<script>alert(1)</script>",
    'case-2" onclick="alert(2)',
    "#case-1 & {{ 7 * 7 }} </title>",
)
CHOSEN = (
    EstimatedParameter("length scale", 40.0, 25.0, 61.0, True),
    EstimatedParameter("amplitude", 2.0, 1.0, 4.0, True),
)
PRIOR = Prior(kunita.Gaussian(40.0, 2.0), 0.7, cases=HOSTILE, num_landmarks=3 * N, chosen=CHOSEN)
ORIGIN = {
    "created": "2020-01-01T00:00:00+00:00", "command": "kunita loo '<b>.tsv'", "software": {"kunita": "0"},
    "inputs": {"<i>case</i>: moving": {"path": "/a/<u>.csv", "bytes": 3, "sha256": "0" * 64}},
}  # fmt: skip


@functools.cache
def cohort():
    """Cases, and landmarks, under names that no page should believe."""
    named = lambda side: Landmarks(side.points, tuple(f"<img src=x onerror={i}>" for i in range(N)))
    return tuple(
        dataclasses.replace(
            without_covariances(case), name=name, moving=named(case.moving), fixed=named(case.fixed)
        )
        for case, name in zip(generated_cohort(3, counts=(N, N)), HOSTILE, strict=True)
    )


@functools.cache
def studied():
    small = dataclasses.replace(PRIOR, model="small")
    methods = (("paper", PAPER, True), ("small", small, False), (OWN, PRIOR, False))
    found = study(
        cohort(), [Trained(name, (prior,) * 3, bare) for name, prior, bare in methods], exact=False
    )
    return Studied(
        experiment_of(found, Settings("<b>.tsv", exact=False), Learning.GIVEN),
        found,
        Learning.GIVEN,
        ORIGIN,
    )


@functools.cache
def learned():
    held = tuple(held_by_prior(case, PRIOR, N) for case in cohort())
    pairs = [(case.moving.points, case.fixed.points) for case in cohort()]
    aligned = tuple(np.linalg.norm(f - without_each(rigid, m, f), axis=1) for m, f in pairs)
    profile = cohort_profile(cohort(), PRIOR)
    return Learned("<b>.tsv", PRIOR, Lesson(), cohort(), held, aligned, profile, ORIGIN)


@functools.cache
def made(kind):
    return study_page(studied()) if kind == "study" else prior_page(learned())


class Read(HTMLParser):
    """What a browser makes of a page: elements, ids, attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.attributes, self.texts, self.within = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, *names):
        return [value or "" for name, value in self.attributes if name in names]


pages = pytest.mark.parametrize("kind", ["study", "prior"])


@pages
def test_a_page_refers_to_nothing_outside(kind):
    page = Read(made(kind))
    for value in page.values("src", "href", "xlink:href", "srcset", "data", "action"):
        assert value.startswith(("#", "data:"))
    assert not {"iframe", "object", "embed", "base"} & set(page.tags)
    assert "@import" not in made(kind)


@pages
def test_every_link_leads_to_one_place_on_the_page(kind):
    page = Read(made(kind))
    assert len(page.ids) == len(set(page.ids))
    assert {value[1:] for value in page.values("href") if value.startswith("#")} <= set(page.ids)


@pages
def test_the_best_and_the_worst_case_are_linked_to_their_landmarks(kind):
    errors = [held.predictions.errors.mean() for held in learned().held]
    for title, k in (("Best case", int(np.argmin(errors))), ("Worst case", int(np.argmax(errors)))):
        tile = re.search(rf"<h3>{title}</h3>.*?</li>", made(kind), re.DOTALL)[0]
        assert f'href="#case-{k + 1}"' in tile
        section = (
            made(kind)
            .partition(f'<details class="case" id="case-{k + 1}">')[2]
            .partition("</details>")[0]
        )
        assert HOSTILE[k] in "".join(Read(section).texts)
        assert section.count("<tr") == N + 1


@pages
def test_names_are_text_whatever_they_say(kind):
    page = Read(made(kind))
    shown = "".join(page.texts)
    for name in (*HOSTILE, *cohort()[0].moving.labels, "<b>.tsv", "<i>case</i>: moving", "<u>.csv"):
        assert name in shown
    assert not {"img", "i", "u"} & set(page.tags)
    assert not page.values("onclick", "onerror")
    assert page.tags.count("script") == 1


@pages
def test_colours_of_figures_are_those_of_the_theme(kind):
    text = made(kind)
    assert not any(colour in text for colour in VARIABLES)
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): (?!none|var\()[^;\"]+", drawn)) == set()


def test_the_page_of_a_study_says_what_was_found():
    shown, experiment = "".join(Read(made("study")).texts), studied().experiment
    for finding in experiment.findings:
        assert finding in shown
    mine = next(row for row in experiment.tables[0].rows if row.method == OWN)
    assert f"{mine.error_mm:.2f} mm" in shown
    assert "seed 0, 2000 resamples" in shown


def test_the_page_of_a_prior_says_that_it_knows_its_cases():
    shown = "".join(Read(made("prior")).texts)
    assert "cases that the prior was learned on" in shown
    assert "95 % from 25 to 61 mm" in shown


def test_the_evidence_of_a_cohort_is_the_sum_over_its_cases():
    """With hyper-priors of the same start for all, which the same case twice has, and nothing else
    to follow."""
    one, prior = cohort()[:1], PRIOR
    single, double = (cohort_profile(cases, prior) for cases in (one, one * 2))
    assert double.scales_mm == pytest.approx(single.scales_mm)
    assert np.all(
        double.log_evidence >= 2 * single.log_evidence - 1e-6
    )  # the hyper-prior counts once, and is ≤ 0


def judged(pits, num_cases=6):
    owners = np.repeat(np.arange(num_cases), len(pits) // num_cases)
    blank = np.ones(len(pits))
    mine = Collected(OWN, owners, blank, np.asarray(pits), blank, blank, None, blank > 0)
    return calibration_badge(mine, coverage_band(mine, case_draws(num_cases, 0))).word


def test_the_uncertainty_is_judged_over_cases():
    uniform = np.random.default_rng(1).permutation((np.arange(120) + 0.5) / 120)
    assert judged(uniform) == "calibrated"
    assert judged(uniform**0.2) == "too sure"
    assert judged(uniform**3) == "cautious"
    assert judged(uniform, num_cases=2) == "calibration open"
    assert (
        judged(np.repeat([0.2, 0.99, 0.2, 0.2, 0.2, 0.9], 20)) == "calibrated"
    )  # one case is not the cohort
    assert (
        judged([0.3, 0.4, 0.7, 0.8, 0.9, 0.94]) == "calibrated"
    )  # nor are six landmarks, one in each case


@pytest.mark.parametrize("name", ["short", "x" * 100, "标志点" * 10, "a\nb\tc", "bell\a"])
def test_a_name_in_a_figure_is_one_line_of_bounded_width(name):
    label = shortened(name, LONGEST_NAME)
    assert text_width(label) <= LONGEST_NAME
    assert label.isprintable()
    assert label.rstrip("…")[:1] == name[0]
