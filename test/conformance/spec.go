// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
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
	// Kwok is set if the spec runs against Karpenter's kwok provider, for comparison.
	Kwok bool
}

// String returns what users see and select.
func (s Spec) String() string {
	text := s.Suite + "/" + s.File + " " + s.Text
	if s.Kwok {
		text += " (kwok)"
	}
	return text
}

// file returns the suite and the file of the spec.
func (s Spec) file() string { return s.Suite + "/" + strings.TrimSuffix(s.File, "_test.go") }

// group returns the row of the table that counts the spec.
func (s Spec) group() string {
	if s.Kwok {
		return s.file() + " (kwok)"
	}
	return s.file()
}

// provider returns the name of the cloud provider that the spec runs against.
func (s Spec) provider() string {
	if s.Kwok {
		return "kwok"
	}
	return "proxmox"
}

// inputs names the binaries that the spec tests.
func (s Spec) inputs() string { return s.Suite + "/" + s.provider() }

// world returns what the spec needs.
func (s Spec) world() worldKind { return worldKind{Large: s.Suite == performanceSuite, Kwok: s.Kwok} }

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
	content, err := os.ReadFile(file) //nolint:gosec // the path is ours
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
