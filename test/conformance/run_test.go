// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func spec(text string, line int) Spec {
	return Spec{Suite: "regression", Description: "Regression", File: "integration_test.go", Line: line, Text: text}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSpecFocus(t *testing.T) {
	t.Parallel()
	s := spec("should allow labels ([*].example.com)", 318)
	pattern := regexp.MustCompile(strings.TrimPrefix(s.focus()[0], "--ginkgo.focus="))
	for text, want := range map[string]bool{
		"Regression should allow labels ([*].example.com)":        true,
		"Regression should allow labels (x.example.com)":          false,
		"Regression should allow labels ([*].example.com) longer": false,
	} {
		if got := pattern.MatchString(text); got != want {
			t.Errorf("focus matches %q: %t, want %t", text, got, want)
		}
	}
	if same := spec(s.Text, 1); same.id() == s.id() {
		t.Error("specs with the same text have the same ID")
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	s := store{dir: t.TempDir()}
	passed := Result{Spec: spec("should pass", 1), Inputs: "one"}
	if _, found, err := s.read(passed.Spec, "one"); found || err != nil {
		t.Fatalf("read before write: found %t, error %v", found, err)
	}
	must(t, s.write(passed))
	for inputs, want := range map[string]bool{"one": true, "another controller": false} {
		if _, valid, err := s.read(passed.Spec, inputs); valid != want || err != nil {
			t.Errorf("read with inputs %q: valid %t, want %t; error %v", inputs, valid, want, err)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := &runner{results: map[string]Result{}, lists: lists{Allowed: []allowed{
		{Spec: spec("should be for kwok only", 2).String(), Reason: "kwok only"}, {Spec: spec("should be fixed", 3).String(), Reason: "a bug"},
	}}}
	for i, result := range []Result{
		{Spec: spec("should pass", 1)},
		{Spec: spec("should be for kwok only", 2), Problem: "skipped", Skipped: true},
		{Spec: spec("should be fixed", 3)},
		{Spec: spec("should fail", 4), Problem: "Timed out\nafter 15m"},
		{Spec: spec("should be repeated", 5), Attempt: 2},
	} {
		result.Took = time.Duration(i) * time.Second
		r.specs = append(r.specs, result.Spec)
		r.results[result.Spec.id()] = result
	}
	r.specs = append(r.specs, spec("should be interrupted", 6))
	got, bad := r.table()
	want := `| file | specs | passed | allowed | failed or not run | time |
|---|---|---|---|---|---|
| regression/integration | 6 | 2 | 1 | 3 | 10s |
| all | 6 | 2 | 1 | 3 | 10s |

- regression/integration_test.go should be for kwok only: allowed: kwok only
- regression/integration_test.go should be fixed: STALE: it passed; remove it from the allowed specs in specs.yaml
- regression/integration_test.go should fail: FAILED: Timed out after 15m
- regression/integration_test.go should be repeated: passed when it was repeated alone
`
	if got != want || bad != 3 {
		t.Errorf("table with %d bad specs, want 3:\n%s\nwant:\n%s", bad, got, want)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	l, err := readLists()
	must(t, err)
	if err := l.check([]string{"none"}, nil); err != nil {
		t.Errorf("checking lists of other suites: %v", err)
	}
	l.Representative = append(l.Representative, "regression/integration_test.go renamed")
	if err := l.check([]string{"regression"}, nil); err == nil {
		t.Error("a list that names no spec is accepted")
	}
}

// TestSelect lists the specs with a script in place of a suite, because suites take minutes to build.
func TestSelect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"controller": "1", "kwok-provider": "1",
		"regression.test":  listingScript("integration_test.go", "should join"),
		"performance.test": listingScript("basic_test.go", "should scale"),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700)) //nolint:gosec // a script
	}
	newRunner := func(focus string) *runner {
		o := options{dir: dir, suites: []string{"regression", performanceSuite}, focus: regexp.MustCompile(focus)}
		o.world = worldOptions{Controller: filepath.Join(dir, "controller"), Kwok: kwokOptions{Provider: filepath.Join(dir, "kwok-provider")}}
		return &runner{options: o, store: store{dir: filepath.Join(dir, "results")}}
	}
	r := newRunner("")
	must(t, r.selectSpecs(t.Context()))
	want := []string{"regression/integration_test.go should join", "performance/basic_test.go should scale", "performance/basic_test.go should scale (kwok)"}
	var got []string
	for _, s := range r.specs {
		got = append(got, s.String())
		must(t, r.store.write(Result{Spec: s, Inputs: r.inputs[s.inputs()]}))
	}
	if !slices.Equal(got, want) {
		t.Errorf("selected %q, want %q", got, want)
	}
	// Another version of the controller makes only its own results invalid.
	must(t, os.WriteFile(filepath.Join(dir, "controller"), []byte("2"), 0o600))
	r = newRunner("basic_test.go should scale$")
	must(t, r.selectSpecs(t.Context()))
	if len(r.specs) != 2 || len(r.results) != 1 || !r.results[r.specs[1].id()].Spec.Kwok {
		t.Errorf("with a new controller, found specs %v and results %v; want one spec for two providers, and the result of kwok", r.specs, r.results)
	}
}

// listingScript returns a program that writes a report with one spec, as the dry run of a suite does.
func listingScript(file, text string) string {
	return fmt.Sprintf("#!/bin/sh\nfor arg; do case $arg in --ginkgo.json-report=*) report=${arg#*=};; esac; done\n"+
		`echo '[{"SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "%s", "LeafNodeLocation": {"FileName": "%s"}}]}]' > "$report"`+"\n", text, file)
}
