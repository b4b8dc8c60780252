// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

// Simulated runs a parallel test in a bubble of testing/synctest: its clock advances only while the
// test, the controller and the simulated Proxmox wait. So neither durations nor the order of events
// depend on the load of the machine, and waiting takes no real time.
//
// The test must not use sockets. A goroutine that waits for a mutex stops the clock, so a mutex must
// not be held while its holder waits.
func Simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// RunSimulated runs a subtest like Simulated.
func RunSimulated(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { Simulated(t, test) })
}

// Setup are the options of a test's Env and of its Process.
type Setup []Option

// With returns the Setup of a test.
func With(options ...Option) Setup { return options }

// Test runs a parallel test in a simulation, with a fake Env and a Process.
func (s Setup) Test(t *testing.T, test func(w *Env, p *Process)) {
	t.Helper()
	Simulated(t, func(t *testing.T) {
		w := NewFake(t, s...)
		w.Process = w.StartProcess()
		test(w, w.Process)
	})
}

// Subtest runs a subtest like Test.
func (s Setup) Subtest(t *testing.T, name string, test func(w *Env, p *Process)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { s.Test(t, test) })
}

// inSimulation reports whether the caller is in a bubble, whose clock starts in 2000.
func inSimulation() bool { return time.Now().Year() < 2020 }
