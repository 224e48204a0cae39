//! PTX to [`PtxKernel`]s.
//!
//! The text is cut into statements. A register gets its index in the file when its name is first seen, and so
//! does a constant, so that instructions have only registers.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Instruction, Kernels, LOCAL, Operation, PtxKernel, PtxParameter, Register, Space, Special, arithmetic};

/// Returns the kernels of a module, or a text with its fault.
pub(crate) fn module(text: &str) -> Result<Kernels, String> {
    let text = without_comments(text);
    let is_64_bit = text.contains(".address_size 64");
    if !text.trim_start().starts_with(".version") || !is_64_bit {
        return Err("no PTX with addresses of 64 bits".to_owned());
    }
    let mut kernels = Kernels::new();
    for rest in text.split(".entry").skip(1) {
        let (head, body) = rest.split_once('{').ok_or("an entry without a body")?;
        let (name, parameters) = head.split_once('(').ok_or("an entry without parameters")?;
        let (parameters, _) = parameters.split_once(')').ok_or("parameters without an end")?;
        let name = name.trim().to_owned();
        let kernel = Builder::new(&name, parameters)
            .and_then(|builder| builder.body(&body[..end_of(body)?]))
            .map_err(|cause| format!("{name}: {cause}"))?;
        kernels.insert(name, Arc::new(kernel));
    }
    Ok(kernels)
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the position of the brace that closes the body.
fn end_of(body: &str) -> Result<usize, String> {
    let mut depth = 1;
    for (place, character) in body.char_indices() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        if depth == 0 {
            return Ok(place);
        }
    }
    Err("a body without an end".to_owned())
}

fn size_of_type(kind: &str) -> Option<u8> {
    Some(match kind {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" => 2,
        "b32" | "u32" | "s32" | "f32" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        _ => return None,
    })
}

struct Builder {
    kernel: PtxKernel,
    names: HashMap<String, Register>,
    constants: HashMap<u64, Register>,
    /// Offsets of parameters, and addresses of the thread's own memory.
    symbols: HashMap<String, u64>,
    labels: HashMap<String, usize>,
    /// Branches, by their place, to the label that each leads to.
    branches: Vec<(usize, String)>,
}

impl Builder {
    fn new(name: &str, parameters: &str) -> Result<Self, String> {
        let (mut places, mut symbols, mut end) = (Vec::new(), HashMap::new(), 0usize);
        for declared in parameters.split(',').map(str::trim).filter(|declared| !declared.is_empty()) {
            let words: Vec<&str> = declared.split_whitespace().collect();
            let kind = words.iter().find_map(|word| size_of_type(word.strip_prefix('.')?));
            let (Some(kind), Some(last)) = (kind, words.last()) else { return Err(format!("{declared:?}")) };
            let (symbol, len, align) = match last.split_once('[') {
                None => (*last, kind.into(), kind.into()),
                Some((symbol, count)) => {
                    let count: usize = count.trim_end_matches(']').parse().map_err(|_| declared.to_owned())?;
                    let align = words.iter().skip_while(|word| **word != ".align").nth(1);
                    let align = align.and_then(|align| align.parse().ok()).unwrap_or(usize::from(kind));
                    (symbol, count * usize::from(kind), align)
                }
            };
            let offset = end.next_multiple_of(align);
            symbols.insert(symbol.to_owned(), offset as u64);
            places.push(PtxParameter { offset, len });
            end = offset + len;
        }
        let kernel = PtxKernel {
            name: name.to_owned(),
            parameters: places,
            registers: Vec::new(),
            special: Vec::new(),
            local_len: 0,
            code: Vec::new(),
        };
        let (names, constants, labels) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Builder { kernel, names, constants, symbols, labels, branches: Vec::new() })
    }

    fn body(mut self, body: &str) -> Result<PtxKernel, String> {
        let mut statement = String::new();
        for character in body.chars() {
            let is_fresh = statement.trim().is_empty();
            match character {
                ';' => {
                    let whole = std::mem::take(&mut statement);
                    self.statement(whole.trim()).map_err(|cause| format!("{}: {cause}", whole.trim()))?;
                }
                // A block of inline assembly.
                '{' | '}' if is_fresh => {}
                ':' if !statement.trim().contains(char::is_whitespace) => {
                    let label = std::mem::take(&mut statement).trim().to_owned();
                    self.labels.insert(label, self.kernel.code.len());
                }
                _ => statement.push(character),
            }
        }
        for (place, label) in std::mem::take(&mut self.branches) {
            let target = *self.labels.get(&label).ok_or_else(|| format!("no label {label}"))?;
            self.kernel.code[place].operation = Operation::Branch(target);
        }
        self.kernel.code.push(Instruction { guard: None, operation: Operation::Return });
        Ok(self.kernel)
    }

    fn statement(&mut self, statement: &str) -> Result<(), String> {
        let (guard, rest) = match statement.strip_prefix('@') {
            None => (None, statement),
            Some(guarded) => {
                let (predicate, rest) = guarded.split_once(char::is_whitespace).ok_or("a guard of nothing")?;
                let (name, is_negated) = match predicate.strip_prefix('!') {
                    Some(name) => (name, true),
                    None => (predicate, false),
                };
                (Some((self.register(name)?, is_negated)), rest.trim())
            }
        };
        let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match name.split('.').next() {
            Some("") => return self.directive(name, operands),
            Some("bra") => self.branches.push((self.kernel.code.len(), operands.trim().to_owned())),
            _ => {}
        }
        let operation = self.operation(name, &split(operands))?;
        self.kernel.code.push(Instruction { guard, operation });
        Ok(())
    }

    fn directive(&mut self, name: &str, declared: &str) -> Result<(), String> {
        match name {
            ".reg" | ".pragma" | ".loc" | ".file" => Ok(()),
            ".local" => {
                let words: Vec<&str> = declared.split_whitespace().collect();
                let [".align", align, ".b8", array] = words[..] else { return Err("memory of a thread".to_owned()) };
                let (symbol, len) = array.trim_end_matches(']').split_once('[').ok_or("no array")?;
                let (align, len) = (number(align)? as usize, number(len)? as usize);
                let start = self.kernel.local_len.next_multiple_of(align);
                self.symbols.insert(symbol.to_owned(), LOCAL + start as u64);
                self.kernel.local_len = start + len;
                Ok(())
            }
            _ => Err("the double does not know this directive".to_owned()),
        }
    }

    fn operation(&mut self, name: &str, operands: &[&str]) -> Result<Operation, String> {
        let unknown = || format!("the double does not know this instruction, {} operands", operands.len());
        let parts: Vec<&str> = name.split('.').collect();
        match (parts[0], operands) {
            ("bra", _) => return Ok(Operation::Branch(usize::MAX)),
            ("ret" | "exit", []) => return Ok(Operation::Return),
            ("ld" | "st", [_, _]) => return self.access(&parts, operands),
            ("mov", [to, from]) if to.starts_with('{') || from.starts_with('{') => {
                return self.part_of_register(&parts, to, from);
            }
            _ => {}
        }
        // A conversion has two kinds, and any other instruction has one. The parts in between belong to the
        // name or change nothing.
        let kinds = if parts[0] == "cvt" { 2 } else { 1 };
        let (words, kinds) = parts.split_at(parts.len().saturating_sub(kinds));
        let harmless = |word: &&&str| !matches!(**word, "rn" | "to" | "global" | "local");
        let name = words.iter().filter(harmless).copied().collect::<Vec<_>>().join(".");
        let mut registers = operands.iter().map(|operand| self.register(operand)).collect::<Result<Vec<_>, _>>()?;
        let found = match registers.len() {
            2 => arithmetic::one(&name, kinds).map(|apply| Operation::One {
                apply,
                to: registers[0],
                from: registers[1],
            }),
            3 => arithmetic::two(&name, kinds).map(|apply| Operation::Two {
                apply,
                to: registers[0],
                from: [registers[1], registers[2]],
            }),
            4 => {
                let last = registers.split_off(1);
                arithmetic::three(&name, kinds).map(|apply| Operation::Three {
                    apply,
                    to: registers[0],
                    from: [last[0], last[1], last[2]],
                })
            }
            _ => None,
        };
        found.ok_or_else(unknown)
    }

    /// `mov.b32 {%rs1, %rs2}, %r1` and the other way round.
    fn part_of_register(&mut self, parts: &[&str], to: &str, from: &str) -> Result<Operation, String> {
        let whole = parts.last().and_then(|kind| size_of_type(kind)).ok_or("no type")? * 8;
        let is_pack = from.starts_with('{');
        let many = self.vector(if is_pack { from } else { to })?;
        let one = self.register(if is_pack { to } else { from })?;
        let bits = whole / many.len() as u8;
        Ok(if is_pack {
            Operation::Pack { bits, to: one, from: many }
        } else {
            Operation::Unpack { bits, to: many, from: one }
        })
    }

    fn access(&mut self, parts: &[&str], operands: &[&str]) -> Result<Operation, String> {
        let is_load = parts[0] == "ld";
        let (values, address) = if is_load { (operands[0], operands[1]) } else { (operands[1], operands[0]) };
        let kind = *parts.last().ok_or("no type")?;
        let len = size_of_type(kind).ok_or("no type")?;
        let mut space = Space::Generic;
        let mut count = 1;
        for word in &parts[1..parts.len() - 1] {
            match *word {
                "param" => space = Space::Parameter,
                "global" | "local" | "nc" => {}
                "v2" => count = 2,
                "v4" => count = 4,
                _ => return Err(format!("the double does not know .{word}")),
            }
        }
        let values = if values.starts_with('{') { self.vector(values)? } else { vec![self.register(values)?] };
        if values.len() != count {
            return Err(format!("{} registers for {count}", values.len()));
        }
        let mut registers = [0; 4];
        registers[..count].copy_from_slice(&values);
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = match address.split_once('+') {
            Some((base, offset)) => (base.trim(), number(offset.trim())? as i64),
            None => (address.trim(), 0),
        };
        let base = if base.starts_with('%') { self.register(base)? } else { self.constant(self.symbol(base)?) };
        let count = count as u8;
        Ok(if is_load {
            let is_signed = kind.starts_with('s');
            Operation::Load { space, len, is_signed, count, to: registers, base, offset }
        } else if space == Space::Generic {
            Operation::Store { len, count, from: registers, base, offset }
        } else {
            return Err("a parameter is written".to_owned());
        })
    }

    fn vector(&mut self, text: &str) -> Result<Vec<Register>, String> {
        let inner = text.trim_start_matches('{').trim_end_matches('}');
        inner.split(',').map(|name| self.register(name.trim())).collect()
    }

    fn symbol(&self, name: &str) -> Result<u64, String> {
        self.symbols.get(name).copied().ok_or_else(|| format!("nothing is named {name}"))
    }

    /// The register of an operand: one of the text, or one that holds a constant.
    fn register(&mut self, operand: &str) -> Result<Register, String> {
        if operand == "_" || operand.starts_with('%') {
            if let Some(register) = self.names.get(operand) {
                return Ok(*register);
            }
            let register = self.another(0);
            if let Some(special) = special(operand)? {
                self.kernel.special.push((special, register));
            }
            self.names.insert(operand.to_owned(), register);
            return Ok(register);
        }
        let value = if operand.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            number(operand)?
        } else {
            self.symbol(operand)?
        };
        Ok(self.constant(value))
    }

    fn constant(&mut self, value: u64) -> Register {
        if let Some(register) = self.constants.get(&value) {
            return *register;
        }
        let register = self.another(value);
        self.constants.insert(value, register);
        register
    }

    fn another(&mut self, value: u64) -> Register {
        self.kernel.registers.push(value);
        Register::try_from(self.kernel.registers.len() - 1).expect("a kernel has fewer than 65536 registers")
    }
}

/// Returns the special register of this name, or an error if it is not implemented.
fn special(name: &str) -> Result<Option<Special>, String> {
    let Some((register, axis)) = name.split_once('.') else {
        let is_ours = name == "_" || name.ends_with(|last: char| last.is_ascii_digit()) || name.starts_with("%SP");
        return if is_ours { Ok(None) } else { Err(format!("the double does not know {name}")) };
    };
    let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
    let found = place(&["%tid", "%ctaid", "%ntid", "%nctaid"], register).zip(place(&["x", "y", "z"], axis));
    found.map(Some).ok_or_else(|| format!("the double does not know {name}"))
}

/// Splits the operands at commas outside of brackets.
fn split(operands: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (place, character) in operands.char_indices() {
        depth += i32::from("{[".contains(character)) - i32::from("}]".contains(character));
        if character == ',' && depth == 0 {
            found.push(operands[start..place].trim());
            start = place + 1;
        }
    }
    let last = operands[start..].trim();
    if !last.is_empty() {
        found.push(last);
    }
    found
}

/// A constant's bits.
fn number(text: &str) -> Result<u64, String> {
    let wrong = |_| format!("{text:?} is no number");
    let hexadecimal = |digits: &str| u64::from_str_radix(digits.trim_end_matches('U'), 16).map_err(wrong);
    if let Some(bits) = text.strip_prefix("0f").or(text.strip_prefix("0d")).or(text.strip_prefix("0x")) {
        return hexadecimal(bits);
    }
    match text.strip_prefix('-') {
        Some(digits) => digits.parse::<u64>().map(u64::wrapping_neg).map_err(wrong),
        None => text.trim_end_matches('U').parse().map_err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(body: &str) -> Result<Arc<PtxKernel>, String> {
        let parameters = ".param .u64 k_0, .param .align 16 .b8 k_1[24], .param .u32 k_2, .param .u8 k_3";
        let text =
            format!(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({parameters})\n{{{body}}}");
        module(&text).map(|kernels| Arc::clone(&kernels["k"]))
    }

    #[test]
    fn parameters_lie_as_in_c() {
        let kernel = kernel("ret;").unwrap();
        let places: Vec<_> = kernel.parameters.iter().map(|one| (one.offset, one.len)).collect();
        assert_eq!(places, [(0, 8), (16, 24), (40, 4), (44, 1)]);
    }

    #[test]
    fn what_is_not_known_is_an_error_with_the_statement() {
        for (body, named) in [
            ("bar.sync 0;", "bar.sync 0"),
            ("add.sat.s32 %r1, %r2, %r3;", "add.sat.s32"),
            ("sqrt.approx.f32 %f1, %f2;", "sqrt.approx"),
            ("ld.shared.u32 %r1, [%rd1];", ".shared"),
            ("mov.u32 %r1, %laneid;", "%laneid"),
            ("bra $L_1;", "$L_1"),
            (".shared .align 4 .b8 s[4];", ".shared"),
        ] {
            let error = kernel(body).err().unwrap_or_default();
            assert!(error.starts_with("k: ") && error.contains(named), "{body}: {error}");
        }
        assert!(module("ELF").is_err());
    }
}
