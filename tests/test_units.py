"""Words for the units of a model: kept by files, shown by tables, plots and pages."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.cli import main
from torsor.formats import binary
from torsor.model.extras import Extras
from torsor.model.units import Units
from torsor.view.plots import axis_labels

WORDS = "amu, nm, ps"


def test_si_is_what_a_model_has_without_words():
    assert zoo.panda().units == Units("kg", "m", "s")
    assert (Units().energy, Units().force, Units().torque) == ("J", "N", "N m")
    assert Units.of("g, cm, s").energy == "g cm^2/s^2"


@pytest.mark.parametrize("words", ["amu", "amu, nm", "amu,,ps", "a, b, c, d", 3])
def test_wrong_words_are_refused(words):
    with pytest.raises(ts.ModelError, match="units"):
        Extras(units=words)


def test_files_keep_units(tmp_path):
    model = zoo.random_chain(3, joints=("prismatic",)).with_extras(Extras(units=WORDS))
    ts.save(model, tmp_path / "model.toml")
    assert ts.load(tmp_path / "model.toml").units == Units("amu", "nm", "ps")
    assert binary.decode(binary.encode(model), "a file").units == Units("amu", "nm", "ps")


def test_plots_and_tables_show_them(capsys, tmp_path):
    model = zoo.random_chain(3, joints=("prismatic", "revolute")).with_extras(Extras(units=WORDS))
    assert set(axis_labels(model, "q")) == {"position, nm", "angle, rad"}
    assert set(axis_labels(model, "tau")) == {"force, kJ/mol/nm", "torque, kJ/mol"}
    run = ts.simulate(model, np.zeros(3), duration=0.1)
    words = [x for ax in run.plot().axes for x in (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left"))]
    assert "time, ps" in words
    assert any("kJ/mol" in x for x in words)
    ts.save(model, tmp_path / "model.toml")
    assert main(["info", str(tmp_path / "model.toml")]) == 0
    shown = capsys.readouterr().out
    assert "amu" in shown
    assert "kg" not in shown
