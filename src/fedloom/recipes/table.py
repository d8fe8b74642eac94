"""The papers' tables and figures by name: one paper, one file."""

from collections.abc import Callable

from fedloom.recipes import feddd, fedumf
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
}
