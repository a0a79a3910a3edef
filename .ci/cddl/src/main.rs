//! Checks with the cddl crate that each vector in wire/testdata matches its rule in wire/protocol.cddl, and that an altered
//! one does not.
//!
//!     vectors wire

use std::{env, error::Error, fs, path::Path, process::ExitCode};

use cddl::{
    ast::CDDL,
    cddl_from_str,
    validator::{cbor::CBORValidator, cbor_value::decode_cbor, Validator},
};

/// Returns an error if body does not match the schema's first rule.
fn validate(schema: &CDDL, body: &[u8]) -> Result<(), String> {
    let value = decode_cbor(body).map_err(|err| err.to_string())?;
    CBORValidator::new(schema, value, None)
        .validate()
        .map_err(|err| err.to_string())
}

/// Returns the number of vectors that do not match their rule, or whose altered copies match it.
fn check(wire: &Path) -> Result<usize, Box<dyn Error>> {
    let text = fs::read_to_string(wire.join("protocol.cddl"))?;
    let mut schema = cddl_from_str(&text, true)?;
    let index: Vec<serde_json::Value> =
        serde_json::from_slice(&fs::read(wire.join("testdata/index.json"))?)?;
    let mut failures = 0;
    for vector in &index {
        let word = |key: &str| {
            vector[key]
                .as_str()
                .ok_or(format!("a vector without {key}: {vector}"))
        };
        let (file, rule) = (word("file")?, word("message")?);
        // The validator uses the first rule.
        let Some(place) = schema.rules.iter().position(|r| r.name() == rule) else {
            println!("{file}: protocol.cddl has no rule {rule}");
            failures += 1;
            continue;
        };
        schema.rules.swap(0, place);
        let body = fs::read(wire.join("testdata").join(file))?;
        if let Err(err) = validate(&schema, &body) {
            println!("{file} does not match {rule}: {err}");
            failures += 1;
        }
        let broken = [&[0x82], &body[..], &[0xf6]].concat(); // an array of the message and null
        if validate(&schema, &broken).is_ok() {
            println!("{rule} matches an altered message");
            failures += 1;
        }
    }
    println!("cddl: {} vectors, {failures} failures", index.len());
    Ok(failures)
}

fn main() -> ExitCode {
    let wire = env::args().nth(1).unwrap_or("wire".into());
    match check(Path::new(&wire)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("{err}");
            ExitCode::FAILURE
        }
    }
}
