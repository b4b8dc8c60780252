// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	"sigs.k8s.io/karpenter/test/suites/performance"
)

// Result is the outcome of one spec.
type Result struct {
	Spec Spec
	// Inputs identifies the binaries that were tested.
	Inputs string
	// Report is Ginkgo's report of the spec.
	Report types.SpecReport
	// Problem is why the spec did not pass. It is empty if it passed.
	Problem string
	// Skipped is set if the spec skipped itself.
	Skipped bool
	// Took includes the start of the suite and the check for leaks.
	Took time.Duration
	// Attempt is 1, or 2 if the spec was repeated.
	Attempt int
	// Phases are the figures of the performance suite, in order.
	Phases []performance.PerformanceReport `json:",omitempty"`
}

func (r Result) passed() bool { return r.Problem == "" }

// store has the last result of each spec as a file.
type store struct{ dir string }

func (s store) file(spec Spec) string { return filepath.Join(s.dir, spec.id()+".json") }

// read returns the result of a spec with the given inputs.
func (s store) read(spec Spec, inputs string) (Result, bool, error) {
	var result Result
	content, err := os.ReadFile(s.file(spec))
	if errors.Is(err, fs.ErrNotExist) {
		return result, false, nil
	}
	if err != nil {
		return result, false, fmt.Errorf("reading result: %w", err)
	}
	if err := json.Unmarshal(content, &result); err != nil {
		return result, false, fmt.Errorf("reading result %s: %w", s.file(spec), err)
	}
	return result, result.Inputs == inputs, nil
}

// write replaces the result of a spec.
func (s store) write(result Result) error {
	content, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding result: %w", err)
	}
	temporary := s.file(result.Spec) + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("writing result: %w", err)
	}
	return os.Rename(temporary, s.file(result.Spec))
}
