"""Reports on run folders: a page, figures and a table for papers, a live view, TensorBoard and MLflow."""
