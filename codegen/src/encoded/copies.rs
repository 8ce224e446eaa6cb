//! What copies move: the elements of a tensor, its scales, or both.

use crate::diag::{Diagnostic, Rule};
use crate::program::{Loc, Place, Planes, Program, Stmt, StmtKind, TensorId};

/// True if a copy names one plane.
pub(super) fn are_named(program: &Program) -> bool {
    let mut places = program.copies().flatten();
    places.any(|place| place.planes != Planes::All)
}

/// The program with a copy for each plane that travels, which follow each other. A copy of scales that do not is nothing, and
/// so is a loop or a branch that has nothing else.
pub(super) fn with_planes(mut program: Program) -> Result<Program, Diagnostic> {
    let mut roles = std::mem::take(&mut program.roles);
    for role in &mut roles {
        role.body = copies(&program, std::mem::take(&mut role.body))?;
    }
    roles.retain(|role| !role.body.is_empty());
    program.roles = roles;
    Ok(program)
}

fn copies(program: &Program, body: Vec<Stmt>) -> Result<Vec<Stmt>, Diagnostic> {
    let encloses = |stmt: &Stmt| stmt.blocks().iter().any(|block| !block.is_empty());
    let mut made = Vec::new();
    for mut stmt in body {
        if let StmtKind::Copy { dst, src } = stmt.kind {
            let all = of_planes(program, dst, src, stmt.at)?;
            made.extend(all.into_iter().map(|kind| Stmt { kind, ..stmt }));
            continue;
        }
        let enclosed = encloses(&stmt);
        for block in stmt.blocks_mut() {
            *block = copies(program, std::mem::take(block))?;
        }
        if encloses(&stmt) || !enclosed {
            made.push(stmt);
        }
    }
    Ok(made)
}

/// A copy as one of each plane that it moves.
fn of_planes(
    program: &Program,
    dst: Place,
    src: Place,
    at: Loc,
) -> Result<Vec<StmtKind>, Diagnostic> {
    let planes = src.planes;
    if dst.planes != planes {
        let word = |planes: Planes| match planes.word() {
            Some(word) => format!("`.{word}()`"),
            None => "all planes".into(),
        };
        let message = format!(
            "a copy of {} goes to {} of a tensor",
            word(planes),
            word(dst.planes)
        );
        return Err(refused(at, message).hint(
            "both sides name the same plane, or neither does: `x.on(peer).scales()[c] = x.scales()[c]`",
        ));
    }
    let gathered = |place: &Place| {
        let tensor = program.tensors.get(place.tensor.index());
        tensor.is_some_and(|tensor| tensor.usage.is_gathered() && tensor.usage.plane.is_none())
    };
    if planes != Planes::All
        && let Some(place) = [&dst, &src].into_iter().find(|place| !gathered(place))
        && let Some(tensor) = program.tensors.get(place.tensor.index())
    {
        let (name, kind) = (&tensor.name, tensor.usage.name());
        let message = format!("`{name}` is {kind}: no scales travel with it");
        return Err(refused(at, message).hint("scales travel with the rows of a `Gathered` input"));
    }
    let travels = |tensor: TensorId| {
        let mut tensors = program.tensors.iter();
        let scale = tensors.position(|scale| {
            scale.usage.is_gathered() && scale.usage.given_scale_of() == Some(tensor)
        });
        scale.map(|scale| TensorId(scale as u16))
    };
    let copy = |planes: [TensorId; 2]| {
        let [dst, src] = [(&dst, planes[0]), (&src, planes[1])].map(|(place, tensor)| Place {
            tensor,
            planes: Planes::All,
            ..place.clone()
        });
        StmtKind::Copy { dst, src }
    };
    let data = copy([dst.tensor, src.tensor]);
    let scales = match [dst.tensor, src.tensor].map(travels) {
        [None, None] => None,
        [Some(to), Some(from)] if to == from => Some(copy([to, from])),
        [to, _] => {
            let [gathered, other] = match to {
                Some(_) => [dst.tensor, src.tensor],
                None => [src.tensor, dst.tensor],
            }
            .map(|tensor| &program.tensors[tensor.index()].name);
            let message = format!(
                "`{gathered}` has scales that travel with it, and `{other}` has no room for them"
            );
            return Err(refused(at, message).hint(
                "copy between ranks within the gathered tensor, or take one scale for all of it",
            ));
        }
    };
    Ok(match planes {
        Planes::All => [Some(data), scales].into_iter().flatten().collect(),
        Planes::Data => vec![data],
        Planes::Scales => scales.into_iter().collect(),
    })
}

fn refused(at: Loc, message: String) -> Diagnostic {
    Diagnostic::new(Rule::Language, at, message)
}
