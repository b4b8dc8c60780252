// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// provenance writes provenance.json, the predicate of https://slsa.dev/spec/v1.0/provenance for a build by GitHub Actions
// (https://actions.github.io/buildtypes/workflow/v1). Without GitHub's variables, the builder is this machine.
func (r release) provenance() error {
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("reading the commit: %w", err)
	}
	content, err := json.MarshalIndent(r.predicate(strings.TrimSpace(string(commit)), os.Getenv), "", " ")
	if err != nil {
		return fmt.Errorf("encoding the provenance: %w", err)
	}
	return r.write("provenance.json", append(content, '\n'))
}

func (r release) predicate(commit string, env func(string) string) object {
	ref := env("GITHUB_REF")
	if ref == "" {
		ref = "refs/tags/" + r.version
	}
	builder, invocation := "https://localhost/release", "https://localhost/release/"+r.version
	if id := env("GITHUB_RUN_ID"); id != "" {
		builder = env("GITHUB_SERVER_URL") + "/" + env("GITHUB_WORKFLOW_REF")
		invocation = fmt.Sprintf("%s/%s/actions/runs/%s/attempts/%s", env("GITHUB_SERVER_URL"), env("GITHUB_REPOSITORY"), id, env("GITHUB_RUN_ATTEMPT"))
	}
	return object{
		"buildDefinition": object{
			"buildType":            "https://actions.github.io/buildtypes/workflow/v1",
			"externalParameters":   object{"workflow": object{"ref": ref, "repository": repository, "path": ".github/workflows/release.yaml"}},
			"resolvedDependencies": []object{{"uri": "git+" + repository + "@" + ref, "digest": object{"gitCommit": commit}}},
		},
		"runDetails": object{"builder": object{"id": builder}, "metadata": object{"invocationId": invocation}},
	}
}
