// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// maxPrice limits each price so the sum of prices stays exact.
const maxPrice = 1_000_000

func text(field func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error { *field(o) = v; return nil }
}

func oneOf[T ~string](field func(*Options) *T, allowed ...string) func(*Options, string) error {
	return func(o *Options, v string) error {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("found %q, want one of %s", v, strings.Join(allowed, ", "))
		}
		*field(o) = T(v)
		return nil
	}
}

func number(field func(*Options) *int, low, high int) func(*Options, string) error {
	return func(o *Options, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("found %q, want a whole number from %d to %d", v, low, high)
		}
		*field(o) = n
		return nil
	}
}

func fraction(field func(*Options) *float64) func(*Options, string) error {
	return parsed(field, parseFraction)
}

func parseFraction(v string) (float64, error) {
	f, err := strconv.ParseFloat(v, 64)
	// The negated comparison would accept NaN.
	if inside := f >= 0 && f <= 1; err != nil || !inside {
		return 0, fmt.Errorf("found %q, want a number from 0 to 1, for example 0.075", v)
	}
	return f, nil
}

// parseOptionalFraction returns nil if the value is empty.
func parseOptionalFraction(v string) (*float64, error) {
	if v == "" {
		return nil, nil
	}
	f, err := parseFraction(v)
	if err == nil && f == 1 {
		err = fmt.Errorf("found %q, want a number below 1, for example 0.075", v)
	}
	return &f, err
}

func price(field func(*Options) *float64) func(*Options, string) error {
	return func(o *Options, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		// The negated comparison would accept NaN.
		if inside := f >= 0 && f <= maxPrice; err != nil || !inside {
			return fmt.Errorf("found %q, want a number from 0 to %d, for example 0.025", v, maxPrice)
		}
		*field(o) = f
		return nil
	}
}

func duration(field func(*Options) *time.Duration, low time.Duration) func(*Options, string) error {
	return func(o *Options, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < low {
			return fmt.Errorf("found %q, want a duration of at least %s, for example 30s or 5m", v, low)
		}
		*field(o) = d
		return nil
	}
}

// parsed sets a field with its own parse function.
func parsed[T any](field func(*Options) *T, parse func(string) (T, error)) func(*Options, string) error {
	return func(o *Options, v string) error {
		value, err := parse(v)
		if err == nil {
			*field(o) = value
		}
		return err
	}
}

// parseLimits parses "driver=number,driver=number".
func parseLimits(v string) (map[string]int, error) {
	limits := map[string]int{}
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		driver, number, _ := strings.Cut(entry, "=")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || driver == "" {
			return nil, fmt.Errorf("found %q, want <CSI driver>=<number>, for example csi.proxmox.sinextra.dev=24", entry)
		}
		limits[driver] = n
	}
	return limits, nil
}

// parseVMIDs parses VMIDs separated by commas.
func parseVMIDs(v string) ([]int, error) {
	var vmids []int
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		vmid, err := strconv.Atoi(entry)
		if err != nil || vmid < placement.MinVMID || vmid > placement.MaxVMID {
			return nil, fmt.Errorf("found %q, want VMIDs from %d to %d, separated by commas, for example 9999,30555", entry, placement.MinVMID, placement.MaxVMID)
		}
		vmids = append(vmids, vmid)
	}
	return vmids, nil
}

// shortDuration formats a duration without zero units: 1h instead of 1h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
