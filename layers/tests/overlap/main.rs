//! Configurations: defaults, files, mistakes, and what follows for schedules.

mod defaults;
mod files;
mod flags;
mod page;
mod schedules;
