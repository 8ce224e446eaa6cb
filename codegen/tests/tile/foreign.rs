//! Functions of another language: what they may not be, and what tells them apart.

use crate::fixtures::foreign::{function, gemm, soft_cap};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::value::{Foreign, ScalarFn, Value};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;

/// What lowering says of a product that the function follows.
fn told(program: &Program) -> String {
    match lower(program, &Variant::new(1)) {
        Ok(_) => "accepted".into(),
        Err(found) => {
            let lines = found.iter().map(|one| one.text(&|_| String::new()));
            let lines: Vec<String> = lines
                .map(|text| text.trim_start_matches("error[language]: ").trim().into())
                .collect();
            lines.join("\n")
        }
    }
}

fn of(cuda: &str) -> String {
    told(&gemm(&function(Foreign::new(cuda, |x| x[0])), (8, 8)))
}

fn called(name: &'static str, params: &'static [&'static str]) -> String {
    let function = ScalarFn {
        name,
        params,
        ..function(Foreign::new("return 1.0f;", |_| 1.0))
    };
    told(&gemm(&function, (8, 8)))
}

#[test]
fn arithmetic_on_the_arguments_is_accepted() {
    for text in [
        include_str!("../../../cube/tests/soft_cap.cuh"),
        include_str!("../../../cube/tests/bent.cuh")
            .replace("slope", "limit")
            .as_str(),
        "return x;",
        "float most = 1.5e-3f; if (x < -limit) { most = 0x1p3f; } else if (x == 0.0f) most = limit; return most * x;",
        "const unsigned bits = __float_as_uint(x) & 0xffff0000u; return __uint_as_float(bits);",
        "const bool b = x > 1.0f && limit < 2.0f; return b ? float(int(x)) : fmaf(x, limit, 1.0f);",
    ] {
        assert_eq!(of(text), "accepted", "{text}");
    }
}

#[test]
fn what_is_more_than_arithmetic_is_refused() {
    let refused = [
        "#include <math.h>\nreturn x;",
        "__shared__ float all[32]; return x;",
        "shared_memory_2[0] = x; return x;",
        "return x + limit[0];",
        "__syncthreads(); return x;",
        "atomicAdd(&total, 1); return x;",
        "float all[4]; return x;",
        "for (int k = 0; k < 3; ++k) x = x * x; return x;",
        "while (true) { x = x + 1.0f; } return x;",
        "return x * float(threadIdx.x);",
        "return x % limit;",
        "return lgamma(x);",
        "float* p = &x; return x;",
        "const float& p = x; return x;",
        "return *(&x + 4096);",
        "*(&x + 8) = 0.0f; return x;",
        "return x * *(&limit);",
        "return (float)*(&x);",
        "return x && &limit;",
        "return (&x)<:9:>;",
        "float v; return v;",
        "float v; if (x < 0.0f) v = x; return v;",
        "float v; v == x; return v;",
        "return reinterpret_cast<unsigned const&>(x);",
        "double d = x; return float(d);",
        "return float(half(x));",
        "return gelu(x);",
        "asm(x); return x;",
        "return x(1.0f);",
        "return fmaxf;",
        "if (x < 1.0f) { const float less = x; } return less;",
        "return x; // now",
        "return x;}  __device__ int trap() { return 1;",
        "if (x < 1.0f) { return x; }",
        "if (x < 1.0f) return x;",
        "return x; x = 1.0f;",
        "x = 1.0f; return;",
        "",
    ];
    let told: Vec<String> = refused.map(|text| format!("{text}\n  {}", of(text))).into();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn names_are_identifiers() {
    insta::assert_snapshot!(called("soft cap", &["x", "limit"]), @"`soft cap` cannot follow a product: its name is no identifier of C++");
    insta::assert_snapshot!(called("2nd", &["x", "limit"]), @"`2nd` cannot follow a product: its name is no identifier of C++");
    insta::assert_snapshot!(called("f", &["x", "x"]), @"`f` cannot follow a product: two arguments are called `x`: rename one");
    insta::assert_snapshot!(called("f", &["x", "float"]), @"`f` cannot follow a product: `float` cannot be an argument's name in C++: rename it");
    insta::assert_snapshot!(called("f", &["x", "exp"]), @"`f` cannot follow a product: `exp` cannot be an argument's name in C++: rename it");
    insta::assert_snapshot!(called("f", &["x", "y", "z"]), @"f takes 3 arguments, not 2");
}

/// A product that two functions follow.
fn both(first: ScalarFn, second: ScalarFn) -> String {
    let mut s = ScheduleBuilder::new("both");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (8u32, 8u32));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let once = product.call(first, [1.0.into()]);
            s.store(y.at(t), once.call(second, [2.0.into()]));
        });
    });
    told(&s.finish())
}

#[test]
fn a_name_is_one_functions() {
    let other = function(Foreign::new("return limit;", |x| x[1]));
    let ours = ScalarFn {
        body: Value::Arg(0).into(),
        ..soft_cap()
    };
    insta::assert_snapshot!(both(soft_cap(), other.clone()), @"
    two different functions are called `soft_cap`
      help: reports and the kernel know them by name: rename one
    ");
    insta::assert_snapshot!(both(ours.clone(), other.clone()), @"
    two different functions are called `soft_cap`
      help: reports and the kernel know them by name: rename one
    ");
    assert_eq!(both(soft_cap(), soft_cap()), "accepted");
    // One function of ours may call another language's.
    let calls = ScalarFn {
        name: "twice",
        body: (Value::Arg(0).call(soft_cap(), [Value::Arg(1)]) + Value::Arg(0)).into(),
        ..ours
    };
    assert_eq!(both(calls.clone(), soft_cap()), "accepted");
    assert_eq!(both(calls, other.clone()), both(soft_cap(), other));
}

#[test]
fn texts_tell_plans_apart() {
    let hash = |cuda: &str, twin| {
        let program = gemm(&function(Foreign::new(cuda, twin)), (8, 8));
        let kernel = lower(&program, &Variant::new(1).arch(Arch::Cpu)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape::new(16, 16, 16);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{error}"));
        series.plan(&shape).expect("a plan").hash
    };
    let one = hash("return x;", |x| x[0]);
    assert_ne!(one, hash("return limit;", |x| x[0]));
    // Addresses of functions are others in another process.
    assert_eq!(one, hash("return x;", |x| x[1]));
}
