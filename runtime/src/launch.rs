//! The one launch path.
