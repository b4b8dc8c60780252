// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"path"
	"runtime/debug"
	"strings"
	"time"
)

// billOfMaterials returns the modules of a binary from Go's build info, as SPDX 2.3.
func billOfMaterials(binary, version string, created time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("reading the build info of the binary: %w", err)
	}
	const own = "SPDXRef-program"
	packages := []object{component(own, info.Main.Path, version)}
	relations := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own}}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	for n, module := range append([]*debug.Module{{Path: "stdlib", Version: goVersion}}, info.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		id := fmt.Sprintf("SPDXRef-module-%d", n)
		packages = append(packages, component(id, module.Path, module.Version))
		relations = append(relations, object{"spdxElementId": own, "relationshipType": "CONTAINS", "relatedSpdxElement": id})
	}
	content, err := json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
		"name":              path.Base(info.Path) + " " + version,
		"documentNamespace": fmt.Sprintf("%s/sbom/%s/%s/%s-%s", repository, version, path.Base(info.Path), setting(info, "GOOS"), setting(info, "GOARCH")),
		"creationInfo":      object{"created": created.Format(time.RFC3339), "creators": []string{"Tool: hack/release"}},
		"packages":          packages,
		"relationships":     relations,
	}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encoding the bill of materials: %w", err)
	}
	return append(content, '\n'), nil
}

func component(id, name, version string) object {
	return object{
		"SPDXID": id, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
		"licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
		"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + name + "@" + version}},
	}
}

// setting returns a build setting, for example GOARCH.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return "unknown"
}
