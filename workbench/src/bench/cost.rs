//! Cost of options: the speed of our best kernels over that of the same, plain ones.

use super::stats::geometric_mean;
use super::table::Result;
use crate::render;
use serde_json::{Value as Json, json};

/// Over all products that were measured both ways.
#[derive(Clone, PartialEq, Debug)]
struct Cost {
    products: usize,
    mean: f64,
    least: (f64, String),
}

impl Cost {
    fn of(results: &[Result]) -> Option<Cost> {
        let each = results.iter().filter_map(|result| {
            let over = result.best()?.over_plain?;
            Some((over, result.case.to_string()))
        });
        let each: Vec<(f64, String)> = each.collect();
        let numbers: Vec<f64> = each.iter().map(|(over, _)| *over).collect();
        Some(Cost {
            products: numbers.len(),
            mean: geometric_mean(&numbers)?,
            least: each.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?,
        })
    }
}

/// In a sentence that says what the plain ones are.
pub(super) fn text(unlike: &str, results: &[Result]) -> Option<String> {
    let Cost {
        products,
        mean,
        least: (least, at),
    } = Cost::of(results)?;
    let products = render::plural(products as u64, "product");
    Some(format!(
        "**cost**: {mean:.3} of the speed of the same kernels {unlike}, geometric mean of {products}, {least:.3} at {at}"
    ))
}

/// For JSON.
pub(super) fn object(unlike: &str, results: &[Result]) -> Option<Json> {
    let cost = Cost::of(results)?;
    Some(json!({
        "the_same": unlike,
        "products": cost.products,
        "speed_over_the_same": cost.mean,
        "least": cost.least.0,
        "least_at": cost.least.1,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::result;
    use super::*;

    #[test]
    fn options_cost_what_the_best_kernels_lose_by_them() {
        let names = [("cuBLASLt", 100.0), ("a", 80.0), ("b", 70.0)];
        let mut all = [
            result([512; 3], None, &names),
            result([1024; 3], None, &names),
        ];
        let instead = "with a given scale instead of --output-scales";
        assert_eq!(text(instead, &all), None);
        assert_eq!(object(instead, &all), None);
        for (result, over) in all.iter_mut().zip([0.96, 0.9]) {
            result.rows[1].over_plain = Some(0.5);
            result.rows[2].over_plain = Some(over);
        }
        let told = text(instead, &all).expect("a cost");
        let wanted = "**cost**: 0.930 of the speed of the same kernels with a given scale instead of --output-scales, geometric mean of 2 products, 0.900 at 1024x1024x1024";
        assert_eq!(told, wanted);
        let object = object(instead, &all).expect("a cost");
        assert_eq!(
            (&object["the_same"], &object["products"]),
            (&json!(instead), &json!(2))
        );
        // One that is wrong costs nothing.
        all[1].rows[2].difference.wrong = 1;
        let told = text(instead, &all).expect("a cost");
        assert!(told.contains("0.500 at 1024x1024x1024"), "{told}");
    }
}
