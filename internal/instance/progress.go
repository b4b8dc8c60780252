// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"strings"
	"time"
)

// Phase is a step of a launch.
type Phase string

// The phases in their order; the boot drive is made in parallel with the clone. The
// phases after PhaseStarted are observed, and a guest that requests no certificate skips
// two of them.
const (
	PhasePlanned Phase = "Planned"
	// PhaseHostWaking: the Host was shut down to save energy. Other launches skip this phase and
	// the next one.
	PhaseHostWaking Phase = "HostWaking"
	PhaseHostAwake  Phase = "HostAwake"
	PhaseCloning    Phase = "Cloning"
	PhaseCloned     Phase = "Cloned"
	PhaseBootDrive  Phase = "BootDriveUploaded"
	PhaseConfigured Phase = "Configured"
	PhaseStarted    Phase = "Started"

	PhaseCertificateRequested Phase = "CertificateRequested"
	PhaseCertificateApproved  Phase = "CertificateApproved"
	PhaseNodeRegistered       Phase = "NodeRegistered"
	PhaseNodeReady            Phase = "NodeReady"
	PhaseInitialized          Phase = "Initialized"
)

// Progress is the timeline of a launch: when each phase was reached, relative to the plan.
type Progress map[Phase]time.Duration

// NewProgress returns the progress of a launch that was only planned.
func NewProgress() Progress { return Progress{PhasePlanned: 0} }

// Reach records a phase, and reports whether it is reached for the first time.
func (p Progress) Reach(phase Phase, since time.Duration) bool {
	_, before := p[phase]
	p[phase] = since
	return !before
}

// HasReached reports whether a phase was reached.
func (p Progress) HasReached(phase Phase) bool {
	_, reached := p[phase]
	return reached
}

// String returns the steps that have ended, with their times.
func (p Progress) String() string {
	var steps []string
	for _, step := range p.Steps() {
		steps = append(steps, fmt.Sprintf("%s %.1fs", step.Phase, step.At.Seconds()))
	}
	return strings.Join(steps, ", ")
}
