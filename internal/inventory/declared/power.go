// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Defaults of PowerSettings.
const (
	DefaultIdleTime    = 30 * time.Minute
	DefaultMinAwake    = 1
	DefaultWakeTimeout = 5 * time.Minute
)

// MaxWakeTimeout leaves time for the launch before Karpenter deletes a Claim whose Node has not
// registered, which is after 15 minutes.
const MaxWakeTimeout = 10 * time.Minute

// PowerMode is whether a Host takes part in power management.
type PowerMode string

// Modes.
const (
	PowerNone PowerMode = "None"
	// PowerReport: it is reported whether the Host could be shut down.
	PowerReport PowerMode = "Report"
	// PowerEnabled: the Host is shut down, and woken when it is needed.
	PowerEnabled PowerMode = "Enabled"
)

// PowerSettings are the settings of a Host for power management.
type PowerSettings struct {
	Mode PowerMode
	// IdleTime is how long a Host must be idle before it could be shut down.
	IdleTime time.Duration
	// MinAwake is the number of Hosts of the region that stay awake. The largest value of
	// its Hosts applies.
	MinAwake int
	// WakeTimeout is how long a Host may take to boot after it was woken.
	WakeTimeout time.Duration
	// SleepWindow is when the Host could be off.
	SleepWindow SleepWindow
	// WattsIdle and WattsFull are the power of the Host without and with full load; zero if
	// unknown.
	WattsIdle, WattsFull float64
	// EnergyPrice is the price of a kWh; zero if unknown.
	EnergyPrice float64
}

// Watts returns the estimated power of a Host that is online, with a fraction of its CPUs in
// use. It returns 0 if the settings contain no watts.
func (s PowerSettings) Watts(load float64) float64 {
	full := max(s.WattsFull, s.WattsIdle)
	return s.WattsIdle + (full-s.WattsIdle)*min(max(load, 0), 1)
}

// SleepWindow is a time that recurs, in UTC. The zero value always applies.
type SleepWindow struct {
	begins   cron.Schedule
	duration time.Duration
}

// Contains reports whether a time is in the window.
func (w SleepWindow) Contains(t time.Time) bool {
	if w.begins == nil {
		return true
	}
	next := w.begins.Next(t.UTC().Add(-w.duration))
	return !next.IsZero() && !next.After(t.UTC()) // zero: never, such as on February 30
}

func parsePowerMode(raw json.RawMessage) (setter, error) {
	var mode PowerMode
	if err := json.Unmarshal(raw, &mode); err != nil || (mode != PowerNone && mode != PowerReport && mode != PowerEnabled) {
		return nil, fmt.Errorf("want %q, %q or %q", PowerNone, PowerReport, PowerEnabled)
	}
	return func(s *HostSettings) { s.Power.Mode = mode }, nil
}

func parseWakeTimeout(raw json.RawMessage) (setter, error) {
	d, err := parseDuration(raw)
	if err != nil || d > MaxWakeTimeout {
		return nil, fmt.Errorf(`want a duration such as "5m", above 0 and up to %s`, MaxWakeTimeout)
	}
	return func(s *HostSettings) { s.Power.WakeTimeout = d }, nil
}

func durationField(set func(*HostSettings, time.Duration)) func(json.RawMessage) (setter, error) {
	return func(raw json.RawMessage) (setter, error) {
		d, err := parseDuration(raw)
		return func(s *HostSettings) { set(s, d) }, err
	}
}

func parseDuration(raw json.RawMessage) (time.Duration, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return d, nil
		}
	}
	return 0, errors.New(`want a duration such as "30m", above 0`)
}

// parseSleepWindow parses {"schedule": "0 19 * * *", "duration": "11h"}. Karpenter's
// disruption budgets have the same format.
func parseSleepWindow(raw json.RawMessage) (setter, error) {
	var file struct {
		Schedule string          `json:"schedule"`
		Duration json.RawMessage `json:"duration"`
	}
	const want = `want {"schedule": "0 19 * * *", "duration": "11h"}`
	if err := unmarshalStrict(raw, &file); err != nil {
		return nil, fmt.Errorf("%s (%w)", want, err)
	}
	begins, err := cron.ParseStandard("TZ=UTC " + file.Schedule)
	if err != nil || file.Schedule == "" {
		return nil, fmt.Errorf("%s (schedule: found %q, want five fields of cron)", want, file.Schedule)
	}
	duration, err := parseDuration(file.Duration)
	if err != nil {
		return nil, fmt.Errorf("%s (duration: %w)", want, err)
	}
	return func(s *HostSettings) { s.Power.SleepWindow = SleepWindow{begins, duration} }, nil
}
