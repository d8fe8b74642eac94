"""The papers' tables and figures by name: one paper, one file."""

from collections.abc import Callable

from fedloom.recipes import feddd, fedspu, fedumf, rafed, safari
from fedloom.recipes.recipe import Recipe

RECIPES: dict[str, Callable[[bool], Recipe]] = {
    "fedumf-table1": fedumf.table1,
    "fedumf-table2": fedumf.table2,
    "fedumf-table3": fedumf.table3,
    "fedumf-table4": fedumf.table4,
    "feddd-fig4": feddd.fig4,
    "feddd-fig5": feddd.fig5,
    "feddd-fig6": feddd.fig6,
    "feddd-fig7": feddd.fig7,
    "feddd-fig21": feddd.fig21,
    "safari-fig2": safari.fig2,
    "safari-fig3": safari.fig3,
    "safari-fig4": safari.fig4,
    "safari-fig5": safari.fig5,
    "safari-fig6": safari.fig6,
    "fedspu-table1": fedspu.table1,
    "fedspu-table2": fedspu.table2,
    "fedspu-table3": fedspu.table3,
    "fedspu-table4": fedspu.table4,
    "fedspu-fig5": fedspu.fig5,
    "rafed-table2": rafed.table2,
    "rafed-table3": rafed.table3,
    "rafed-fig2": rafed.fig2,
    "rafed-fig3": rafed.fig3,
    "rafed-fig4": rafed.fig4,
}
