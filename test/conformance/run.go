// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	"sigs.k8s.io/karpenter/test/suites/performance"
)

// runner runs the selected specs that have no result yet.
type runner struct {
	options
	lists lists
	store store

	specs   []Spec
	inputs  map[string]string // by suite
	mu      sync.Mutex
	results map[string]Result // by ID
	done    int
	pending int
}

func suiteOf(name string) string {
	suite, _, _ := strings.Cut(name, "/")
	return suite
}

// selectSpecs lists the specs of the suites and reads the results that are still valid.
func (r *runner) selectSpecs(ctx context.Context) error {
	r.inputs, r.results = map[string]string{}, map[string]Result{}
	var all []Spec
	for _, suite := range r.suites {
		specs, err := listSpecs(ctx, r.dir, suite)
		if err != nil {
			return err
		}
		all = append(all, specs...)
	}
	if err := r.lists.check(r.suites, all); err != nil {
		return err
	}
	if err := os.MkdirAll(r.store.dir, 0o700); err != nil {
		return fmt.Errorf("creating directory of results: %w", err)
	}
	for _, spec := range all {
		if !r.focus.MatchString(spec.String()) || r.representative && !slices.Contains(r.lists.Representative, spec.String()) {
			continue
		}
		r.specs = append(r.specs, spec)
	}
	if len(r.specs) == 0 {
		return fmt.Errorf("no spec of %s matches --focus", strings.Join(r.suites, ", "))
	}
	return r.readResults()
}

// readResults reads the results of the selected specs that are valid for the current binaries.
func (r *runner) readResults() error {
	for _, spec := range r.specs {
		if r.inputs[spec.Suite] == "" {
			hash, err := hashFiles(r.world.Controller, binary(r.dir, spec.Suite))
			if err != nil {
				return err
			}
			r.inputs[spec.Suite] = hash
		}
		result, valid, err := r.store.read(spec, r.inputs[spec.Suite])
		if err != nil {
			return err
		}
		if valid && !r.fresh {
			r.results[spec.id()] = result
		}
	}
	return nil
}

// hashFiles returns a value that changes with the content of the files.
func hashFiles(files ...string) (string, error) {
	sum := sha256.New()
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("reading binary: %w", err)
		}
		_, err = io.Copy(sum, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return "", fmt.Errorf("reading binary: %w", err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:12]), nil
}

// run runs the specs without a valid result in all worlds, and then those that failed once more
// in one world: a machine with several busy worlds may be too slow for the timeouts of a spec.
func (r *runner) run(ctx context.Context) error {
	var todo []Spec
	for _, spec := range r.specs {
		if result, ok := r.results[spec.id()]; !ok || r.unexpected(result) {
			todo = append(todo, spec)
		}
	}
	if skipped := len(r.specs) - len(todo); skipped > 0 {
		fmt.Printf("%d of %d specs have a result from an earlier run with this controller\n", skipped, len(r.specs))
	}
	if err := r.runAll(ctx, todo, r.worlds, 1); err != nil {
		return err
	}
	var again []Spec
	for _, spec := range todo {
		if result, ok := r.results[spec.id()]; ok && r.unexpected(result) {
			again = append(again, spec)
		}
	}
	return r.runAll(ctx, again, 1, 2)
}

// unexpected reports whether a spec failed that must pass.
func (r *runner) unexpected(result Result) bool {
	return !result.passed() && r.lists.reason(result.Spec) == ""
}

// runAll runs specs in the given number of worlds. It returns an error if a world fails.
func (r *runner) runAll(ctx context.Context, specs []Spec, worlds, attempt int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.done, r.pending = 0, len(specs)
	queue := make(chan Spec, len(specs))
	for _, spec := range specs {
		queue <- spec
	}
	close(queue)
	failures := make(chan error, worlds)
	for number := range min(worlds, len(specs)) {
		go func() {
			err := r.runWorld(ctx, number+1, attempt, queue)
			if err != nil {
				cancel()
			}
			failures <- err
		}()
	}
	var err error
	for range min(worlds, len(specs)) {
		err = errors.Join(err, <-failures)
	}
	return err
}

// runWorld runs specs of the queue in one world. A spec that fails may leave objects, so the
// next spec gets a new world.
func (r *runner) runWorld(ctx context.Context, number, attempt int, queue <-chan Spec) error {
	var w *worldProcess
	stop := func() {
		if w != nil {
			w.stop()
			w = nil
		}
	}
	defer stop()
	for spec := range queue {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w != nil && w.large != spec.isLarge() {
			stop()
		}
		if w == nil {
			o := r.world
			o.Large = spec.isLarge()
			o.Dir = filepath.Join(r.dir, fmt.Sprintf("world-%d", number))
			var err error
			if w, err = startWorld(ctx, o); err != nil {
				return err
			}
		}
		began := time.Now()
		result, err := w.call(specRequest{Spec: spec, Binary: binary(r.dir, spec.Suite), Dir: filepath.Join(r.dir, "logs", spec.id())})
		if ctx.Err() != nil {
			return ctx.Err() // the result is that of an interrupted spec
		}
		if err != nil {
			return fmt.Errorf("running %s: %w", spec, err)
		}
		result.Inputs, result.Attempt, result.Took = r.inputs[spec.Suite], attempt, time.Since(began)
		if err := r.record(result); err != nil {
			return err
		}
		if !result.passed() && !result.Skipped {
			stop()
		}
	}
	return nil
}

// record stores and prints a result.
func (r *runner) record(result Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[result.Spec.id()] = result
	r.done++
	fmt.Printf("%s [%d/%d] %-7s %4.0fs  %s\n", time.Now().Format(time.TimeOnly), r.done, r.pending, r.outcome(result), result.Took.Seconds(), result.Spec)
	if r.unexpected(result) {
		fmt.Printf("    %s\n    log: %s\n", strings.ReplaceAll(shorten(result.Problem), "\n", "\n    "), filepath.Join(r.dir, "logs", result.Spec.id()))
	}
	return r.store.write(result)
}

// shorten returns the first lines of a message.
func shorten(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	return strings.Join(lines[:min(5, len(lines))], "\n")
}

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
