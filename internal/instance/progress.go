// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
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
type Progress struct {
	Phase    Phase
	Timeline map[Phase]seconds
}

type seconds float64

func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

func (s seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(s.duration().Round(10*time.Millisecond)) / float64(time.Second))
}

// NewProgress returns the progress of a launch that was only planned.
func NewProgress() Progress {
	var p Progress
	p.Reach(PhasePlanned, 0)
	return p
}

// Reach records a phase, and reports whether it is reached for the first time.
func (p *Progress) Reach(phase Phase, since time.Duration) bool {
	if p.Timeline == nil {
		p.Timeline = map[Phase]seconds{}
	}
	_, before := p.Timeline[phase]
	p.Phase = phase
	p.Timeline[phase] = seconds(since.Seconds())
	return !before
}

// HasReached reports whether a phase was reached.
func (p *Progress) HasReached(phase Phase) bool {
	_, reached := p.Timeline[phase]
	return reached
}
