use super::*;
use crate::schedules::{self, Sender};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};

/// y = all_gather(x) · wᵀ of 1000 x 256 x 128 on 4 ranks.
fn gather() -> (Checked<Kernel>, Checked<Plan>) {
    let kernel =
        lower(&schedules::gather(Sender::Ctas(4)), &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.expect("a kernel");
    let plan = verify::plan(&kernel, &Shape::new(1000, 256, 128), &Machine::h200());
    (kernel, plan.expect("a plan"))
}

/// Arguments that fit, at addresses that are far apart: name, what is given, where it starts.
fn good() -> [(&'static str, Given, u64); 3] {
    let given = |home, rows, columns, writable| Given {
        home,
        dtype: Some(Dtype::Bf16),
        extent: Extent::Shaped([rows, columns]),
        writable,
    };
    [
        ("x", given(Home::Heap, 1000, 128, false), 1 << 20),
        ("w", given(Home::Own, 256, 128, false), 2 << 20),
        ("y", given(Home::Own, 1000, 256, true), 3 << 20),
    ]
}

/// All of a launch's checks; `change` spoils what fits.
fn told(change: impl FnOnce(&mut Vec<(&'static str, Given, u64)>)) -> String {
    let (kernel, plan) = gather();
    let planned = Planned::new(&kernel, 0, plan, 0, |_| false);
    let mut named = good().to_vec();
    change(&mut named);
    let check = || {
        let (mut ids, mut starts) = (Vec::new(), Vec::new());
        for (name, one, start) in named {
            let id = find(&kernel, name)?;
            check_one(&kernel, &planned, id, &one)?;
            ids.push(id);
            starts.push((id, start));
        }
        check_all(&kernel, &ids)?;
        check_starts(&kernel, &planned, &starts)
    };
    match check() {
        Ok(()) => "fine".into(),
        Err(error) => format!("{error}; {}", error.help().unwrap_or_default()),
    }
}

#[test]
fn what_fits_is_accepted_and_more_rows_too() {
    assert_eq!(told(|_| ()), "fine");
    assert_eq!(
        told(|given| given[0].1.extent = Extent::Shaped([4096, 128])),
        "fine"
    );
    // A slice of another library has no columns.
    assert_eq!(
        told(|given| given[1].1.extent = Extent::Flat(256 * 128)),
        "fine"
    );
    let text = told(|given| given[1].1.extent = Extent::Flat(256 * 128 - 1));
    assert!(
        text.starts_with("w has 32767 elements; give 256 x 128"),
        "{text}"
    );
    // Peers address the heap; a tensor of one rank may be there as well.
    assert_eq!(told(|given| given[1].1.home = Home::Heap), "fine");
}

/// A transposed weight is as long as the right one.
#[test]
fn a_slice_that_says_its_shape_is_compared_by_that() {
    let said = |shape| {
        move |given: &mut [(&str, Given, u64)]| {
            given[1].1.extent = Extent::Flat(256 * 128).shaped(shape).expect("as long");
        }
    };
    assert_eq!(told(|given| said([256, 128])(given)), "fine");
    let text = told(|given| said([128, 256])(given));
    assert!(text.starts_with("w is 128 x 256; give 256 x 128"), "{text}");
    for (extent, shape) in [
        (Extent::Flat(256 * 128), [256, 127]),
        (Extent::Flat(256 * 128), [usize::MAX, 2]),
        (Extent::Shaped([256, 128]), [128, 256]),
    ] {
        let refused = extent.shaped(shape).expect_err("another size");
        assert_eq!(refused.kind(), "usage", "{refused}");
    }
    let same = Extent::Shaped([256, 128]).shaped([256, 128]);
    assert_eq!(same.expect("the same"), Extent::Shaped([256, 128]));
}

#[test]
fn every_property_of_a_tensor_is_compared() {
    type Case = (&'static str, fn(&mut Given), &'static str);
    let cases: [Case; 6] = [
        (
            "x",
            |x| x.home = Home::Own,
            "x is not in the symmetric heap; `allocate` it: peers address it",
        ),
        (
            "w",
            |w| w.home = Home::Elsewhere("another communicator"),
            "w is memory of another communicator; give memory of the rank that built the op",
        ),
        (
            "w",
            |w| w.dtype = Some(Dtype::F16),
            "the elements of w are f16; this op was built for bf16 there",
        ),
        (
            "y",
            |y| y.dtype = None,
            "the elements of y are no tensor's type; ",
        ),
        (
            "y",
            |y| y.extent = Extent::Shaped([999, 256]),
            "y is 999 x 256; give 1000 x 256 for 1000x256x128",
        ),
        (
            "w",
            |w| w.extent = Extent::Shaped([128, 256]),
            "w is 128 x 256; ",
        ),
    ];
    for (name, spoil, wanted) in cases {
        let text = told(|given| {
            let one = given.iter_mut().find(|(of, ..)| *of == name);
            spoil(&mut one.expect("one of the three").1);
        });
        assert!(text.starts_with(wanted), "{text}");
    }
    let text = told(|given| given[1].2 += 8);
    assert!(
        text.starts_with("w starts at an address that is not a multiple of 16"),
        "{text}"
    );
}

#[test]
fn an_output_must_be_given_to_be_written() {
    let text = told(|given| given[2].1.writable = false);
    assert_eq!(
        text,
        "y is an output and was given by a shared reference, or may only be read; give `&mut` of memory that may be written: the launch writes y"
    );
}

#[test]
fn tensors_that_overlap_are_refused_where_one_is_written() {
    let overlap = |text: &str| assert!(text.contains(" overlap, and the launch writes "), "{text}");
    // The last byte of w is the first of y.
    overlap(&told(|given| given[2].2 = given[1].2 + 256 * 128 * 2 - 16));
    assert_eq!(
        told(|given| given[2].2 = given[1].2 + 256 * 128 * 2),
        "fine"
    );
    // Peers write the rows of x that they send.
    overlap(&told(|given| {
        given[1].1.home = Home::Heap;
        given[1].2 = given[0].2;
    }));
}

#[test]
fn names_are_those_of_the_schedule_and_all_are_given() {
    let text = told(|given| given[0].0 = "z");
    assert_eq!(text, "gather has no tensor `z`; its tensors are x, w, y");
    let text = told(|given| {
        given.remove(1);
    });
    assert_eq!(
        text,
        "a launch of gather without w; give every tensor of the schedule"
    );
}

/// One number is read by itself, wherever it lies among others; a scale of rows is not.
#[test]
fn a_scale_is_aligned_as_a_number() {
    use counterflow_codegen::variant::Scales;
    let told = |scales: Scales, start: u64| {
        let variant = Variant::new(4).dtype(Dtype::E4M3).scales(scales);
        let kernel = lower(&schedules::gather(Sender::Ctas(4)), &variant).and_then(verify::kernel);
        let kernel = kernel.expect("a kernel");
        let plan = verify::plan(&kernel, &Shape::new(1000, 256, 128), &Machine::h200());
        let planned = Planned::new(&kernel, 0, plan.expect("a plan"), 0, |_| false);
        let id = same(&kernel, "w.scale").expect("a scale");
        match check_starts(&kernel, &planned, &[(id, start)]) {
            Ok(()) => "fine".into(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(told(Scales::PerTensor, 4100), "fine");
    assert_eq!(told(Scales::PerRow, 4112), "fine");
    for (scales, start, align) in [(Scales::PerTensor, 4098, 4), (Scales::PerRow, 4100, 16)] {
        let wanted =
            format!("the scale tensor of w starts at an address that is not a multiple of {align}");
        assert!(told(scales, start).starts_with(&wanted));
    }
}
