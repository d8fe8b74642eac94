"""What happened in these runs? A page to look at and to print, figures and a table for papers, a live view."""
