//! A schedule's open choices.

use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::variant::Variant;
use std::collections::BTreeMap;

/// A schedule's open choices: names and options. Loops over variables of one name share their choices.
///
/// ```
/// use counterflow::{Variant, schedules::ag_gemm, tuned};
/// use std::collections::BTreeMap;
///
/// let program = ag_gemm();
/// for (name, options) in tuned::choices(&program) {
///     println!("{name}: {options:?}");
/// }
/// // With the tile settled, and only one number of CTAs asked for.
/// let base = Variant::new(4).set("tiles", (128, 256));
/// let open = BTreeMap::from([("comm.ctas".to_owned(), vec![8.into()])]);
/// let variants = tuned::combinations(&program, &base, &open);
/// assert!(variants.len() < tuned::combinations(&program, &Variant::new(4), &BTreeMap::new()).len());
/// ```
pub fn choices(program: &Program) -> BTreeMap<&str, &[Setting]> {
    let tunables = program.tunables.iter().rev();
    tunables
        .map(|tunable| (&tunable.name[..], &tunable.options[..]))
        .collect()
}

/// Every combination of the choices that `base` leaves open, the first options first. `open` replaces a choice's
/// options.
///
/// [`choices`] has an example.
pub fn combinations(
    program: &Program,
    base: &Variant,
    open: &BTreeMap<String, Vec<Setting>>,
) -> Vec<Variant> {
    let mut found = vec![base.clone()];
    for (name, options) in choices(program) {
        if base.choices.contains_key(name) {
            continue;
        }
        let options = open.get(name).map_or(options, Vec::as_slice);
        let set = |variant: &Variant| {
            let variant = variant.clone();
            options
                .iter()
                .map(move |option| variant.clone().set(name, *option))
        };
        found = found.iter().flat_map(set).collect();
    }
    found
}

/// True if ranks communicate.
pub(crate) fn moves(program: &Program) -> bool {
    program
        .tensors
        .iter()
        .any(|tensor| tensor.usage.placement.symmetric)
}
