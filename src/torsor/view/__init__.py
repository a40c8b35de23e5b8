"""Pictures: plots for papers (`plots`) and a page that plays a motion in 3-D (`page`)."""
