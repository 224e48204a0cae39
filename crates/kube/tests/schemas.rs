//! Compares `src/schemas.json` with the operators' CustomResourceDefinitions. The definitions are not part of
//! this repository: they are read from `RINGPULL_CRDS` or from `../shared/crds`, where `SOURCES.tsv` has the
//! commit of each. With `RENEW=1` the test writes `src/schemas.json` again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use ringpull_kube::schema::{Schemas, Shape, check};

const DEFINITIONS: [&str; 6] = [
    "mpi-operator-v0.8.2/kubeflow.org_mpijobs.yaml",
    "training-operator-v1.8.1/kubeflow.org_mxjobs.yaml",
    "training-operator-v1.9.4/kubeflow.org_tfjobs.yaml",
    "trainer-v2.3.0/trainer.kubeflow.org_clustertrainingruntimes.yaml",
    "trainer-v2.3.0/trainer.kubeflow.org_trainingruntimes.yaml",
    "trainer-v2.3.0/trainer.kubeflow.org_trainjobs.yaml",
];

/// Lists that Kubernetes merges by a key, although the definitions name no key.
const MERGED: [(&str, &str); 9] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("ports", "containerPort"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
];

/// The shapes, each only once.
#[derive(Default)]
struct Maker {
    shapes: Vec<Shape>,
    known: std::collections::HashMap<Shape, usize>,
}

impl Maker {
    fn add(&mut self, shape: Shape) -> usize {
        *self.known.entry(shape.clone()).or_insert_with(|| {
            self.shapes.push(shape);
            self.shapes.len() - 1
        })
    }

    fn fields(&mut self, fields: &[(&str, Shape)], required: &[&str]) -> Shape {
        let fields = fields.iter().map(|(name, shape)| ((*name).to_owned(), self.add(shape.clone()))).collect();
        Shape::Fields(fields, required.iter().map(|name| (*name).to_owned()).collect())
    }

    fn map_of(&mut self, shape: Shape) -> Shape {
        Shape::Map(self.add(shape))
    }

    fn list_of(&mut self, shape: Shape) -> Shape {
        Shape::List(self.add(shape), Vec::new())
    }

    /// The shape of any object's metadata. The definitions state only that it is an object.
    fn metadata(&mut self) -> Shape {
        let (texts, list) = (self.map_of(Shape::String), self.list_of(Shape::String));
        let anything = self.list_of(Shape::Any);
        let number = Shape::Integer(None, None);
        self.fields(
            &[
                ("name", Shape::String),
                ("generateName", Shape::String),
                ("namespace", Shape::String),
                ("labels", texts.clone()),
                ("annotations", texts),
                ("finalizers", list),
                ("uid", Shape::String),
                ("resourceVersion", Shape::String),
                ("selfLink", Shape::String),
                ("creationTimestamp", Shape::String),
                ("deletionTimestamp", Shape::String),
                ("generation", number.clone()),
                ("deletionGracePeriodSeconds", number),
                ("ownerReferences", anything.clone()),
                ("managedFields", anything),
            ],
            &[],
        )
    }

    fn shape(&mut self, schema: &Value, name: &str) -> Shape {
        if schema["x-kubernetes-int-or-string"] == true {
            let is_quantity = schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("KMGTPE"));
            return if is_quantity { Shape::Quantity } else { Shape::Either };
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == true || name == "status" {
            return Shape::Any;
        }
        if let Some(words) = schema["enum"].as_array() {
            return Shape::Enum(words.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        }
        match schema["type"].as_str() {
            Some("string") => Shape::String,
            Some("boolean") => Shape::Boolean,
            Some("number") => Shape::Number,
            Some("integer") => {
                let most = (schema["format"] == "int32").then_some(i64::from(i32::MAX));
                Shape::Integer(schema["minimum"].as_i64(), schema["maximum"].as_i64().or(most))
            }
            Some("array") => {
                let of = self.shape(&schema["items"], "");
                let mut keys: Vec<String> =
                    schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().map(text).collect();
                if let Some((_, key)) = MERGED.iter().find(|(other, _)| *other == name) {
                    keys = vec![(*key).to_owned()];
                }
                Shape::List(self.add(of), keys)
            }
            Some("object") if name == "metadata" => self.metadata(),
            Some("object") => match (schema["properties"].as_object(), schema["additionalProperties"].is_object()) {
                (Some(fields), _) => {
                    let shapes = fields.iter().map(|(name, field)| {
                        let shape = self.shape(field, name);
                        (name.clone(), self.add(shape))
                    });
                    let shapes: BTreeMap<String, usize> = shapes.collect();
                    Shape::Fields(shapes, schema["required"].as_array().into_iter().flatten().map(text).collect())
                }
                (None, true) => {
                    let of = self.shape(&schema["additionalProperties"], "");
                    self.map_of(of)
                }
                (None, false) => Shape::Any,
            },
            _ => Shape::Any,
        }
    }

    fn object(&mut self, spec: Shape) -> Shape {
        let metadata = self.metadata();
        let fields = [
            ("apiVersion", Shape::String),
            ("kind", Shape::String),
            ("metadata", metadata),
            ("spec", spec),
            ("status", Shape::Any),
        ];
        self.fields(&fields, &["metadata", "spec"])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn made(folder: &Path) -> Schemas {
    let mut maker = Maker::default();
    let mut kinds = BTreeMap::new();
    let mut runtime = Value::Null;
    for file in DEFINITIONS {
        let content = std::fs::read_to_string(folder.join(file)).unwrap();
        let definition: Value = serde_saphyr::from_str(&content).unwrap();
        let spec = &definition["spec"];
        for version in spec["versions"].as_array().unwrap() {
            let schema = &version["schema"]["openAPIV3Schema"];
            let name = format!("{}/{}/{}", text(&spec["group"]), text(&version["name"]), text(&spec["names"]["kind"]));
            let shape = maker.shape(schema, "");
            kinds.insert(name, maker.add(shape));
            if file.ends_with("_trainingruntimes.yaml") {
                runtime = schema["properties"]["spec"]["properties"]["template"]["properties"]["spec"].clone();
            }
        }
    }
    // Kubernetes' own kinds, as parts of a JobSet.
    let jobs = &runtime["properties"]["replicatedJobs"]["items"]["properties"]["template"]["properties"]["spec"];
    let pod = &jobs["properties"]["template"]["properties"]["spec"];
    let claim = &pod["properties"]["volumes"]["items"]["properties"]["ephemeral"]["properties"]["volumeClaimTemplate"];
    let selector = &pod["properties"]["topologySpreadConstraints"]["items"]["properties"]["labelSelector"];
    let selector = maker.shape(selector, "");
    let peer = {
        let block = {
            let except = maker.list_of(Shape::String);
            maker.fields(&[("cidr", Shape::String), ("except", except)], &["cidr"])
        };
        let fields = [("podSelector", selector.clone()), ("namespaceSelector", selector.clone()), ("ipBlock", block)];
        maker.fields(&fields, &[])
    };
    let port = maker
        .fields(&[("port", Shape::Either), ("protocol", Shape::String), ("endPort", Shape::Integer(None, None))], &[]);
    let (peers, ports) = (maker.list_of(peer), maker.list_of(port));
    let mut rules = |way: &str| {
        let rule = maker.fields(&[(way, peers.clone()), ("ports", ports.clone())], &[]);
        maker.list_of(rule)
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    let types = maker.list_of(Shape::String);
    let policy = maker.fields(
        &[("podSelector", selector), ("ingress", ingress), ("egress", egress), ("policyTypes", types)],
        &["podSelector"],
    );
    let (job, claim) = (maker.shape(jobs, ""), maker.shape(&claim["properties"]["spec"], ""));
    let own =
        [("batch/v1/Job", job), ("v1/PersistentVolumeClaim", claim), ("networking.k8s.io/v1/NetworkPolicy", policy)];
    for (name, spec) in own {
        let object = maker.object(spec);
        kinds.insert(name.to_owned(), maker.add(object));
    }
    Schemas { kinds, shapes: maker.shapes }
}

#[test]
fn the_schemas_are_those_of_the_operators() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::var_os("RINGPULL_CRDS").map_or_else(|| root.join("../../../shared/crds"), PathBuf::from);
    if !folder.is_dir() {
        println!("skipped: {} is absent; name a folder of Kubeflow's CRDs with RINGPULL_CRDS", folder.display());
        return;
    }
    let schemas = made(&folder);
    let file = root.join("src/schemas.json");
    if std::env::var_os("RENEW").is_some() {
        let lines: Vec<String> = schemas.shapes.iter().map(|shape| serde_json::to_string(shape).unwrap()).collect();
        let kinds = serde_json::to_string(&schemas.kinds).unwrap();
        std::fs::write(&file, format!("{{\"kinds\": {kinds},\n\"shapes\": [\n{}\n]}}\n", lines.join(",\n"))).unwrap();
    }
    let written: Schemas = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(written == schemas, "{} is stale: run this test with RENEW=1", file.display());
}

#[test]
fn the_reading_of_schemas_is_strict() {
    let job: Value = serde_saphyr::from_str(include_str!("clean.yaml")).unwrap();
    assert_eq!(check(&job), []);
    for (path, value, expected) in [
        ("/spec/slotsPerWorker", json!("2"), "a whole number, without quotes"),
        ("/spec/runPolicy", json!({ "suspend": "true" }), "true or false"),
        ("/spec/runPolicy", json!({ "cleanPodPolicy": 1 }), "in quotes"),
        ("/spec/mpiImplementation", json!("OpenMpi"), "one of \"OpenMPI\""),
        ("/spec/mpiReplicaSpecs/Worker/template/spec/containers", json!({}), "a list"),
        ("/spec/mpiReplicaSpecs/Worker/template/spec/containers/0", json!({ "image": "a" }), "add name"),
        ("/spec/mpiReplicaSpecs/Worker/template/spec", json!({ "containers": [], "nodeselector": {} }), "nodeSelector"),
        ("/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/resources/limits/memory", json!("8GB"), "8G"),
        ("/metadata/labels", json!({ "a": 1 }), "in quotes"),
        ("/spec", json!({}), "mpiReplicaSpecs"),
    ] {
        let mut wrong = job.clone();
        let parent = &path[..path.rfind('/').unwrap()];
        let name = &path[parent.len() + 1..];
        match wrong.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
            parent => parent[name] = value,
        }
        let faults = check(&wrong);
        assert!(faults.len() == 1 && faults[0].fix.contains(expected), "{path}: {faults:?}");
    }
}
