"""The papers' tables and figures by name: one paper, one file."""

from collections.abc import Callable

from fedloom.recipes import feddd, feddd_more, fedspu, fedumf, fedumf_appendix, rafed, safari
from fedloom.recipes.recipe import Recipe

RECIPES: dict[str, Callable[[bool], Recipe]] = {
    "fedumf-table1": fedumf.table1,
    "fedumf-table2": fedumf.table2,
    "fedumf-table1-cnn": fedumf.table1_cnn,
    "fedumf-table2-cnn": fedumf.table2_cnn,
    "fedumf-table3": fedumf.table3,
    "fedumf-table4": fedumf.table4,
    "fedumf-table-a1": fedumf_appendix.table_a1,
    "fedumf-table-a2": fedumf_appendix.table_a2,
    "feddd-fig4": feddd.fig4,
    "feddd-fig5": feddd.fig5,
    "feddd-fig6": feddd.fig6,
    "feddd-fig7": feddd.fig7,
    "feddd-fig9": feddd_more.fig9,
    "feddd-fig10": feddd_more.fig10,
    "feddd-fig11": feddd_more.fig11,
    "feddd-fig12": feddd_more.fig12,
    "feddd-fig13": feddd_more.fig13,
    "feddd-fig15": feddd_more.fig15,
    "feddd-fig16": feddd_more.fig16,
    "feddd-fig17": feddd_more.fig17,
    "feddd-fig18": feddd_more.fig18,
    "feddd-fig19": feddd_more.fig19,
    "feddd-fig20": feddd_more.fig20,
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
