//! Tests of rules that Cargo cannot enforce: the layers inside `ringpull-allreduce`, no files that import
//! each other in a circle, crates without `unsafe`, and plain ASCII. They also compare the crates with the
//! table in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of `crates/allreduce`. Each layer imports only the layers before it.
const LAYERS: [&str; 4] = ["transport", "interpreter", "communicator", "progress"];

#[test]
fn the_table_of_architecture_says_what_each_crate_uses() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<[&str; 3]> = page
        .lines()
        .filter_map(|line| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [_, name, folder, _, uses, _] => Some([
                name.strip_prefix('`')?.strip_suffix('`').filter(|name| name.starts_with("ringpull"))?,
                folder.trim_matches('`'),
                uses,
            ]),
            _ => None,
        })
        .collect();
    let short = |name: &str| name.strip_prefix("ringpull-").unwrap_or(name).to_owned();
    let mut above = BTreeSet::new();
    for [name, folder, uses] in &rows {
        let folder = if *folder == "src" { "." } else { folder };
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder} is not {name}");
        let used: BTreeSet<String> = section(&manifest, "dependencies")
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|dependency| *dependency == "ringpull" || dependency.starts_with("ringpull-"))
            .map(short)
            .collect();
        let said: BTreeSet<String> = uses.split(", ").filter(|name| *name != "-").map(str::to_owned).collect();
        assert_eq!(used, said, "what {name} uses, by its Cargo.toml and by ARCHITECTURE.md");
        assert!(used.is_subset(&above), "{name} uses a crate that stands below it");
        above.insert(short(name));
    }
    let members = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = section(&members, "workspace.dependencies").filter(|line| line.starts_with("ringpull")).count();
    assert_eq!(rows.len(), members + 1, "every crate has a row, and the Python package, which no crate uses");
}

/// The lines of `[name]` in a `Cargo.toml`.
fn section<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let heading = format!("[{name}]");
    manifest.lines().skip_while(move |line| *line != heading).skip(1).take_while(|line| !line.starts_with('['))
}

#[test]
fn every_layer_of_allreduce_imports_only_those_before_it() {
    let layer_of = |module: &str| LAYERS.iter().position(|layer| module.split("::").next() == Some(layer));
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (module, imports) in imports_of_crate("crates/allreduce") {
        let Some(layer) = layer_of(&module) else { continue };
        seen.insert(layer);
        let above = imports.iter().filter(|other| layer_of(other).is_some_and(|above| above > layer));
        wrong.extend(above.map(|above| format!("{module} imports {above}")));
    }
    assert_eq!(seen.len(), LAYERS.len(), "a layer has no files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files that still import each other, by crate. A module and the modules inside it may import each
/// other.
const CIRCLES: &[(&str, &[&str])] = &[];

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle_but_those_named_here() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<String> =
        crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().to_str().unwrap())).collect();
    names.push(String::new());
    let mut found = BTreeSet::new();
    for name in names {
        found.extend(circles(&imports_of_crate(&name)).into_iter().map(|circle| (name.clone(), circle)));
    }
    let named = |(name, circle): &(&str, &[&str])| {
        ((*name).to_owned(), circle.iter().map(|module| (*module).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(found, CIRCLES.iter().map(named).collect());
}

/// Returns the modules of the crate in this folder, each with the modules that it imports. Tests do not
/// count.
fn imports_of_crate(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let folder = root().join(folder).join("src");
    let read = |file: &PathBuf| Some((module_name(file.strip_prefix(&folder).unwrap())?, Module::read(&code(file))));
    let modules: BTreeMap<String, Module> = sources(folder.to_str().unwrap()).iter().filter_map(read).collect();
    modules.keys().map(|module| (module.clone(), imports(module, &modules))).collect()
}

/// Returns the groups of modules that import each other. A module and the modules inside it are not a group.
/// The root of a crate is left out, since it only names its modules.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|module| (module, reachable(module, imports))).collect();
    let on_circle = imports.keys().filter(|module| !module.is_empty() && reached[module].contains(module));
    let circle = |module: &String| -> Vec<String> {
        let of_both = reached[module].iter().filter(|other| !other.is_empty() && reached[**other].contains(module));
        of_both.map(|other| (*other).clone()).collect()
    };
    let lies_in = |other: &String, module: &String| other == module || other.starts_with(&format!("{module}::"));
    on_circle.map(circle).filter(|circle| !circle.iter().all(|other| lies_in(other, &circle[0]))).collect()
}

/// Returns the name of the module in a file, such as `worker_loop::queue`. The name of the root is empty.
/// Returns `None` for tests and programs.
fn module_name(file: &Path) -> Option<String> {
    let path = file.with_extension("");
    let name = path.to_str().unwrap().trim_end_matches("/mod").replace('/', "::");
    let is_of_tests = name.split("::").any(|part| part.ends_with("tests"));
    (!is_of_tests && name != "main").then(|| if name == "lib" { String::new() } else { name })
}

/// The paths that occur in a file.
#[derive(Default)]
struct Module {
    /// Every path of an import or an expression, as the file writes it.
    paths: Vec<String>,
    /// The paths of the file's imports, by the names that they have in the file. Other modules may reach
    /// these names through this module.
    names: BTreeMap<String, String>,
}

impl Module {
    fn read(code: &str) -> Self {
        let text = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let mut module = Module::default();
        let mut rest = String::new();
        // An import begins at the start of a line and ends with a semicolon.
        for (number, part) in text.split("use ").enumerate() {
            let is_import = number > 0 && rest.rsplit('\n').next().is_none_or(is_visibility);
            match part.split_once(';') {
                Some((tree, after)) if is_import => {
                    for (path, name) in leaves(tree) {
                        module.paths.push(path.clone());
                        module.names.insert(name, path);
                    }
                    rest.push_str(after);
                }
                _ => {
                    rest.push_str(if number > 0 { "use " } else { "" });
                    rest.push_str(part);
                }
            }
        }
        module.paths.extend(paths_in(&rest));
        module
    }
}

/// Returns true if a line has only a visibility before `use`.
fn is_visibility(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line == "pub" || line.starts_with("pub(") && !line.contains(' ')
}

/// Returns the paths of an import, each with the name that the import gives it.
fn leaves(tree: &str) -> Vec<(String, String)> {
    let Some((head, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
        let path = path.trim();
        let path = path.strip_suffix("::self").unwrap_or(path);
        return vec![(path.to_owned(), alias.unwrap_or(path.rsplit("::").next().unwrap()).to_owned())];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(character);
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| leaves(&format!("{}{}", head.trim(), part.trim()))).collect()
}

/// Returns the paths of expressions and types, which are names joined by `::`.
fn paths_in(code: &str) -> Vec<String> {
    let words = code.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
    let paths = words.map(|word| word.trim_end_matches(':')).filter(|word| word.contains("::"));
    paths.filter(|path| !path.starts_with(':')).map(str::to_owned).collect()
}

/// Returns the modules that `module` imports: by `crate::`, `super::` or `self::`, by the name of a module
/// inside it, and through the imports of other modules, such as the re-exports of the root.
fn imports(module: &str, modules: &BTreeMap<String, Module>) -> BTreeSet<String> {
    let paths = modules[module].paths.iter();
    let found = paths.filter_map(|path| Some(resolve(&absolute(module, path, modules)?, modules, 0)));
    found.filter(|found| found != module && !found.is_empty()).collect()
}

/// Returns the path from the root of the crate. Returns `None` if the path leads to another crate or does not
/// name a module.
fn absolute(module: &str, path: &str, modules: &BTreeMap<String, Module>) -> Option<Vec<String>> {
    let mut parts: Vec<String> = path.split("::").map(str::to_owned).collect();
    let mut base: Vec<String> = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    match parts[0].as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            while parts.first().is_some_and(|part| part == "super") {
                base.pop();
                parts.remove(0);
            }
            return Some([base, parts].concat());
        }
        first => {
            let child = [&base[..], &[first.to_owned()]].concat().join("::");
            return modules.contains_key(&child).then(|| [base, parts].concat());
        }
    }
    Some([base, parts.split_off(1)].concat())
}

/// Returns the module that defines the item at `path`.
fn resolve(path: &[String], modules: &BTreeMap<String, Module>, depth: usize) -> String {
    let at = (0..=path.len()).rev().find(|end| modules.contains_key(&path[..*end].join("::"))).unwrap_or(0);
    let module = path[..at].join("::");
    let through = path.get(at).and_then(|name| modules.get(&module)?.names.get(name));
    match through.and_then(|through| absolute(&module, through, modules)) {
        // The limit ends the search if two files import a name from each other.
        Some(through) if depth < 10 => resolve(&[&through, &path[at + 1..]].concat(), modules, depth + 1),
        _ => module,
    }
}

/// Returns all modules that `module` imports, directly or through other modules.
fn reachable<'a>(module: &String, imports: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = imports[module].iter().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    found
}

#[test]
fn types_of_a_crate_have_a_name_each() {
    let mut found: BTreeMap<(String, String), BTreeSet<PathBuf>> = BTreeMap::new();
    for file in sources("src").into_iter().chain(sources("crates")).filter(|file| !is_of_tests(file)) {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let owner = path.split("src/").next().unwrap().to_owned();
        for line in code(&file).lines() {
            let item = match line.strip_prefix("pub(") {
                Some(limited) => limited.split_once(") ").map_or(limited, |(_, item)| item),
                None => line.trim_start_matches("pub "),
            };
            let mut words = item.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if let (Some("struct" | "enum" | "trait" | "type" | "union"), Some(name)) = (words.next(), words.next()) {
                found.entry((owner.clone(), name.to_owned())).or_default().insert(file.clone());
            }
        }
    }
    assert!(found.len() > 300, "types are found: {}", found.len());
    let twice: Vec<_> = found.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "two types of a crate share a name: {twice:#?}");
}

/// Returns true if the file contains only tests.
fn is_of_tests(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn crates_that_need_no_unsafe_code_forbid_it() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let folders: Vec<String> =
        crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().to_str().unwrap())).collect();
    let mut forbidding = 0;
    for folder in &folders {
        let needs = sources(&format!("{folder}/src")).iter().any(|file| code(file).contains("allow(unsafe_code)"));
        let forbids = code(&root().join(folder).join("src/lib.rs")).contains("#![forbid(unsafe_code)]");
        assert!(needs != forbids, "{folder} needs unsafe code: {needs}, forbids it: {forbids}");
        forbidding += usize::from(forbids);
    }
    assert!(forbidding >= 4, "{forbidding} crates forbid it");
}

/// A page fits one screen, so that it can hold a decision but not the decision's history.
#[test]
fn pages_of_decisions_are_few_and_fit_a_screen() {
    let pages = fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|page| !page.ends_with("README.md"));
    let lines: BTreeMap<PathBuf, usize> =
        pages.map(|page| (page.clone(), fs::read_to_string(&page).unwrap().lines().count())).collect();
    assert!((20..=30).contains(&lines.len()), "{} pages", lines.len());
    let long: Vec<_> = lines.iter().filter(|(_, lines)| **lines > 60).collect();
    assert!(long.is_empty(), "pages of more than 60 lines, whose tables belong in benches/tables.md: {long:?}");
}

#[test]
fn every_source_file_is_ascii() {
    let wrong: Vec<String> = ["src", "crates", "tests", "examples", "benches", "python"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|file| !fs::read_to_string(file).unwrap().is_ascii())
        .map(|file| file.display().to_string())
        .collect();
    assert!(wrong.is_empty(), "not ASCII: {}", wrong.join(", "));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    found.sort();
    found
}

/// The file without its comments.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_are_read_from_groups_too() {
    let found = Module::read("use crate::error::{Error, Result};\nlet x = crate::kind::Kind::Local;").paths;
    assert_eq!(found, ["crate::error::Error", "crate::error::Result", "crate::kind::Kind::Local"]);
    let found = leaves("crate::{a::{self, B as C}, d}");
    let found: Vec<_> = found.iter().map(|(path, name)| format!("{name}={path}")).collect();
    assert_eq!(found, ["a=crate::a", "C=crate::a::B", "d=crate::d"]);
}

/// Covers each way in which a file can import another file.
#[test]
fn circles_are_found_by_relative_paths_and_through_the_names_of_others() {
    let of = |files: &[(&str, &str)]| {
        let modules: BTreeMap<String, Module> =
            files.iter().map(|(name, code)| ((*name).to_owned(), Module::read(code))).collect();
        let imports = modules.keys().map(|module| (module.clone(), imports(module, &modules))).collect();
        circles(&imports).into_iter().map(|circle| circle.join(" ")).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(of(&[("a", "use crate::b::X;"), ("b", "fn f() { crate::a::g() }")]), "a b");
    assert_eq!(of(&[("a::x", "use super::super::b::Y;"), ("b", "use crate::a::x::Z;")]), "a::x b");
    assert_eq!(of(&[("a", "use self::x::Z;"), ("a::x", "use crate::b::Y;"), ("b", "use crate::a;")]), "a a::x b");
    assert_eq!(of(&[("a", "fn f() { x::g() }"), ("a::x", "use crate::b::Y;"), ("b", "use crate::a;")]), "a a::x b");
    let root = ("", "mod a;\npub use a::X;\npub(crate) use b::{self, Y};");
    assert_eq!(of(&[root, ("a", "pub use crate::Y;"), ("b", "use crate::X;")]), "a b");
    // `a` reaches `b` through an import of `c`, which is not part of the circle.
    assert_eq!(of(&[("a", "use crate::c::Y;"), ("b", "use crate::a::X;"), ("c", "pub use crate::b::Y;")]), "a b");
    assert_eq!(of(&[("a", "use super::b::Y;"), ("a::x", "use super::Z;"), ("b", "use std::fmt;")]), "");
    assert_eq!(of(&[("a", "use x::Y;"), ("a::x", "use super::Z;")]), "", "a module and what lies in it");
    assert_eq!(of(&[("a", "use crate::ab::Y;"), ("ab", "use crate::a::Z;")]), "a ab");
}
