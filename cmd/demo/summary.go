// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Summary is the table at the end.
type Summary struct{ rows [][2]string }

// Add adds a row with a duration.
func (s *Summary) Add(what string, took time.Duration) { s.AddNote(what, seconds(took)) }

// AddNote adds a row.
func (s *Summary) AddNote(what, result string) { s.rows = append(s.rows, [2]string{what, result}) }

// Lines returns the lines of the table.
func (s *Summary) Lines() []terminal.Line {
	width := 0
	for _, row := range s.rows {
		width = max(width, utf8.RuneCountInString(row[0]))
	}
	rule := terminal.Styled(strings.Repeat("─", width+14), terminal.Dim)
	out := []terminal.Line{rule}
	for _, row := range s.rows {
		out = append(out, terminal.Text("  "+terminal.Pad(row[0], width)+"  ").In(terminal.Bold, row[1]))
	}
	return append(out, rule)
}

// spanOf formats the minimum and maximum of durations.
func spanOf(times []time.Duration) string {
	if len(times) == 0 {
		return "-"
	}
	low, high := seconds(slices.Min(times)), seconds(slices.Max(times))
	if low == high {
		return low
	}
	return low + " to " + high
}

// cleanupTimeout is how long the last cleanup may take after the last claim is deleted.
const cleanupTimeout = 20 * time.Second

// verify checks the final state and returns a list of problems.
func (s *Stage) verify(ctx context.Context, nodes []string, summary *Summary) ([]string, error) {
	joined, problems, err := s.Proxmox.BootRecorder.CheckJoins(ctx, s.Plane.Client, nodes)
	if err != nil {
		return nil, err
	}
	summary.AddNote("nodes that joined with the token of their own ISO", fmt.Sprintf("%d of %d", joined, len(nodes)))
	left, err := s.leaked(ctx)
	if err != nil {
		return nil, err
	}
	summary.AddNote("leaked VMs, ISOs, volumes, nodes, claims, join tokens; changed guests", fmt.Sprint(len(left)))
	if len(nodes) == 0 {
		problems = append(problems, "no node joined")
	}
	return append(problems, left...), nil
}

// leaked returns everything that still exists in Proxmox and Kubernetes, after waiting for
// cleanups in progress.
func (s *Stage) leaked(ctx context.Context) ([]string, error) {
	deadline := time.Now().Add(cleanupTimeout)
	for {
		after, err := s.Proxmox.API.Holdings(ctx)
		if err != nil {
			return nil, err
		}
		kube, err := harness.LeakedObjects(ctx, s.Plane.Client)
		if err != nil {
			return nil, err
		}
		left := append(s.Before.Diff(after), kube...)
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return left, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
