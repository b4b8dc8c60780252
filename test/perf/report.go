// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"
)

//go:embed ranges.yaml
var rangesFile []byte

// Section is a group of figures that the same tests measure.
type Section struct {
	Title string `yaml:"title"`
	Text  string `yaml:"text"`
	// Test matches the names of the tests, as in go test -run.
	Test    string  `yaml:"test"`
	Figures []Range `yaml:"figures"`
}

// Range is what a figure may be.
type Range struct {
	Name string   `yaml:"name"`
	Min  *float64 `yaml:"min"`
	Max  *float64 `yaml:"max"`
}

// Contains reports whether a value is in the range. Values that depend on the load of the
// machine may be worse by the factor slack, 1 for none.
func (r Range) Contains(value, slack float64) bool {
	return (r.Min == nil || value*slack >= *r.Min) && (r.Max == nil || value <= *r.Max*slack)
}

func (r Range) String() string {
	switch {
	case r.Min != nil && r.Max != nil:
		return fmt.Sprintf("%g to %g", *r.Min, *r.Max)
	case r.Min != nil:
		return fmt.Sprintf("at least %g", *r.Min)
	case r.Max != nil:
		return fmt.Sprintf("at most %g", *r.Max)
	}
	return "any"
}

// Sections returns the content of ranges.yaml. It fails if a name is missing or duplicate.
func Sections() ([]Section, error) {
	var sections []Section
	decoder := yaml.NewDecoder(bytes.NewReader(rangesFile))
	decoder.KnownFields(true)
	if err := decoder.Decode(&sections); err != nil {
		return nil, fmt.Errorf("reading ranges.yaml: %w", err)
	}
	seen := map[string]bool{}
	for _, section := range sections {
		for _, r := range section.Figures {
			if r.Name == "" || seen[r.Name] {
				return nil, fmt.Errorf("ranges.yaml, section %q: found name %q, allowed: a name that no other figure has", section.Title, r.Name)
			}
			seen[r.Name] = true
		}
	}
	return sections, nil
}

// FindRange returns the range of a figure. It fails if ranges.yaml does not list it.
func FindRange(name string) (Range, error) {
	sections, err := Sections()
	if err != nil {
		return Range{}, err
	}
	for _, section := range sections {
		for _, r := range section.Figures {
			if r.Name == name {
				return r, nil
			}
		}
	}
	return Range{}, fmt.Errorf("ranges.yaml has no figure %q", name)
}

// Figure is a measured value and the command that measured it.
type Figure struct {
	Value   float64 `json:"value"`
	Command string  `json:"command"`
}

// Results are figures by name.
type Results map[string]Figure

// ReadResults reads a file of results. A missing file has none.
func ReadResults(path string) (Results, error) {
	results := Results{}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return results, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &results)
	}
	if err != nil {
		return nil, fmt.Errorf("reading results %s: %w", path, err)
	}
	return results, nil
}

// UpdateResults writes the measured figures to a file. It keeps the other figures of the file
// that ranges.yaml still lists.
func UpdateResults(path string, measured Results) error {
	sections, err := Sections()
	if err != nil {
		return err
	}
	before, err := ReadResults(path)
	if err != nil {
		return err
	}
	results := Results{}
	for _, section := range sections {
		for _, r := range section.Figures {
			figure, ok := measured[r.Name]
			if !ok {
				figure, ok = before[r.Name]
			}
			if ok {
				figure.Value = math.Round(figure.Value*1000) / 1000
				results[r.Name] = figure
			}
		}
	}
	var rows []string // one line per figure
	for _, name := range slices.Sorted(maps.Keys(results)) {
		figure, err := json.Marshal(map[string]Figure{name: results[name]})
		if err != nil {
			return fmt.Errorf("encoding results: %w", err)
		}
		rows = append(rows, "  "+string(figure[1:len(figure)-1]))
	}
	if err := os.WriteFile(path, []byte("{\n"+strings.Join(rows, ",\n")+"\n}\n"), 0o644); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}

// Table returns the results as text: a line for each measured figure, and how many figures of
// ranges.yaml are missing.
func Table(results Results) (string, error) {
	sections, err := Sections()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	missing := 0
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, section := range sections {
		for _, r := range section.Figures {
			figure, ok := results[r.Name]
			if !ok {
				missing++
				continue
			}
			verdict := "ok"
			if !r.Contains(figure.Value, 1) {
				verdict = "OUT OF RANGE"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, format(figure.Value), r, verdict)
		}
	}
	_ = w.Flush() // a Builder does not fail
	if missing > 0 {
		fmt.Fprintf(&b, "%d figures of test/perf/ranges.yaml were not measured\n", missing)
	}
	return b.String(), nil
}

// format returns a value with three digits.
func format(value float64) string {
	if math.Abs(value) >= 100 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}
