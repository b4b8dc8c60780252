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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Summary is the table at the end.
type Summary struct{ rows [][2]string }

// Add a row with the time that something took.
func (s *Summary) Add(what string, took time.Duration) { s.AddNote(what, seconds(took)) }

// AddNote adds a row.
func (s *Summary) AddNote(what, result string) { s.rows = append(s.rows, [2]string{what, result}) }

// Lines of the table.
func (s *Summary) Lines() []line {
	wide := 0
	for _, row := range s.rows {
		wide = max(wide, utf8.RuneCountInString(row[0]))
	}
	rule := styled(strings.Repeat("─", wide+14), dim)
	out := []line{rule}
	for _, row := range s.rows {
		out = append(out, text("  "+pad(row[0], wide)+"  ").in(bold, row[1]))
	}
	return append(out, rule)
}

// spanOf says from which to which time.
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

// settlePatience: a Claim goes a moment before the last of its cleaning does.
const settlePatience = 20 * time.Second

// verify holds the end against the promises. What is wrong comes back in words.
func (s *Stage) verify(ctx context.Context, nodes []string, summary *Summary) ([]string, error) {
	joined, problems, err := s.Proxmox.BootRecorder.CheckJoins(ctx, s.Plane.Client, nodes)
	if err != nil {
		return nil, err
	}
	summary.AddNote("nodes that joined by their own CSR with the token of their own ISO", fmt.Sprintf("%d of %d", joined, len(nodes)))
	left, err := s.leftovers(ctx)
	if err != nil {
		return nil, err
	}
	summary.AddNote("VMs, ISOs, volumes, nodes, claims, join tokens left, guests touched", fmt.Sprint(len(left)))
	if len(nodes) == 0 {
		problems = append(problems, "no node was ever seen")
	}
	return append(problems, left...), nil
}

// leftovers of both sides, after a moment for what is on its way out.
func (s *Stage) leftovers(ctx context.Context) ([]string, error) {
	deadline := time.Now().Add(settlePatience)
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
