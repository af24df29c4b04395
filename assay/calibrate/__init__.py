"""Fits one model's calibration on labelled data, and judges it on questions that it was not fitted on."""
