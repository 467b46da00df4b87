"""The pages of a cohort: one file that asks for nothing, whose links lead somewhere, and in which
names are text."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cohorts import NUM_LANDMARKS
from kunita.cohort.prior import cohort_profile
from kunita.cohort.study_findings import OWN
from kunita.cohort.study_tables import Collected, coverage_band
from kunita.figures.cohort import LONGEST_NAME
from kunita.figures.themed import VARIABLES, shortened, text_width
from kunita.report.cohort_answer import calibration_badge
from kunita.scores import case_draws
from report.cohort_pages import HOSTILE, PRIOR, cohort, learned, made, studied


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
        assert section.count("<tr") == NUM_LANDMARKS + 1


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
