// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
	"sigs.k8s.io/yaml"
)

const performanceSuite = "performance"

// Spec is one spec of a suite.
type Spec struct {
	// Suite is the directory of the suite, and Description its name in the suite's own words.
	Suite, Description string
	File               string
	Line               int
	// Text is the text of all containers and of the spec.
	Text string
}

// String returns what users see and select.
func (s Spec) String() string { return s.Suite + "/" + s.File + " " + s.Text }

// file returns the suite and the file of the spec.
func (s Spec) file() string { return s.Suite + "/" + strings.TrimSuffix(s.File, "_test.go") }

// isLarge reports whether the spec needs a Proxmox cluster for thousands of pods.
func (s Spec) isLarge() bool { return s.Suite == performanceSuite }

// id returns a file name that no other spec has.
func (s Spec) id() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s:%d", s, s.Line))
	return s.Suite + "-" + strings.TrimSuffix(s.File, "_test.go") + "-" + hex.EncodeToString(sum[:6])
}

// focus returns the flags that select only this spec.
func (s Spec) focus() []string {
	return []string{
		"--ginkgo.focus=^" + regexp.QuoteMeta(s.Description+" "+s.Text) + "$",
		fmt.Sprintf("--ginkgo.focus-file=%s:%d", s.File, s.Line),
	}
}

func (s Spec) matches(report types.SpecReport) bool {
	return report.LeafNodeType == types.NodeTypeIt && report.FullText() == s.Text && report.LeafNodeLocation.LineNumber == s.Line
}

// binary returns the path of a suite's test binary.
func binary(dir, suite string) string { return filepath.Join(dir, suite+".test") }

// listSpecs returns the specs of a suite, sorted by file and line, without running them.
func listSpecs(ctx context.Context, dir, suite string) ([]Spec, error) {
	file := filepath.Join(dir, suite+"-specs.json")
	cmd := exec.CommandContext(ctx, binary(dir, suite), "--ginkgo.dry-run", "--ginkgo.seed=1", "--ginkgo.json-report="+file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("listing specs of suite %s: %w\n%s", suite, err, out)
	}
	report, err := readReport(file)
	if err != nil {
		return nil, fmt.Errorf("listing specs of suite %s: %w", suite, err)
	}
	var specs []Spec
	for _, r := range report.SpecReports {
		if r.LeafNodeType != types.NodeTypeIt {
			continue
		}
		specs = append(specs, Spec{
			Suite: suite, Description: report.SuiteDescription,
			File: filepath.Base(r.LeafNodeLocation.FileName), Line: r.LeafNodeLocation.LineNumber, Text: r.FullText(),
		})
	}
	// Ginkgo lists containers in random order.
	slices.SortFunc(specs, func(a, b Spec) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	return specs, nil
}

// readReport reads the JSON report of one run of one suite.
func readReport(file string) (types.Report, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return types.Report{}, err
	}
	var reports []types.Report
	if err := json.Unmarshal(content, &reports); err != nil {
		return types.Report{}, fmt.Errorf("reading %s: %w", file, err)
	}
	if len(reports) != 1 {
		return types.Report{}, errors.New("reading " + file + ": it has no report")
	}
	return reports[0], nil
}

//go:embed specs.yaml
var listsFile []byte

// lists are the specs that are treated differently.
type lists struct {
	// Allowed are specs that do not pass, with the reason.
	Allowed []allowed `json:"allowed"`
	// Representative are the specs of a short run.
	Representative []string `json:"representative"`
}

// allowed is a spec that may fail or be skipped.
type allowed struct {
	Spec   string `json:"spec"`
	Reason string `json:"reason"`
}

func readLists() (lists, error) {
	var l lists
	if err := yaml.UnmarshalStrict(listsFile, &l); err != nil {
		return l, fmt.Errorf("reading specs.yaml: %w", err)
	}
	for _, a := range l.Allowed {
		if a.Reason == "" {
			return l, fmt.Errorf("reading specs.yaml: allowed spec %q has no reason", a.Spec)
		}
	}
	return l, nil
}

// reason returns why a spec may fail. It is empty if the spec must pass.
func (l lists) reason(s Spec) string {
	for _, a := range l.Allowed {
		if a.Spec == s.String() {
			return a.Reason
		}
	}
	return ""
}

// check returns an error for an entry of the given suites that names no spec.
func (l lists) check(suites []string, specs []Spec) error {
	named := slices.Clone(l.Representative)
	for _, a := range l.Allowed {
		named = append(named, a.Spec)
	}
	for _, name := range named {
		suite := suiteOf(name)
		if !slices.Contains(suites, suite) {
			continue
		}
		if !slices.ContainsFunc(specs, func(s Spec) bool { return s.String() == name }) {
			return fmt.Errorf("reading specs.yaml: suite %s has no spec %q", suite, name)
		}
	}
	return nil
}
