//! How long planning, checking, predicting and emulating take.
