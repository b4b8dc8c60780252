// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPrepareFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		minimum time.Duration
		fail    func(e *env, vmid int)
		want    string
	}{
		"timeout": {
			fail: func(e *env, _ int) { e.Clock.Advance(31 * time.Minute) },
			want: "it did not power itself off within spec.prepare.timeout 30m0s",
		},
		"early_power_off": {
			minimum: time.Hour,
			fail:    func(e *env, vmid int) { e.Expect(e.Sim.PowerOffGuest(vmid)).To(Succeed()) },
			want:    "which is too early for an installation",
		},
		"stopped_by_an_administrator": {
			fail: func(e *env, vmid int) { e.stopByHand(vmid) },
			want: "it was stopped by root@pam!admin (task qmstop)",
		},
		"stopped_by_a_task_that_fails": {
			fail: func(e *env, vmid int) {
				e.AddFault(pvesim.Fault{Task: "qmstop", FailAfter: "got timeout", Count: 1})
				_, err := e.admin().StopVM(e.T.Context(), "pve1", vmid)
				e.Expect(err).NotTo(HaveOccurred())
				e.Clock.Sleep(time.Minute)
			},
			want: "it was stopped by root@pam!admin (task qmstop)",
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 1, withAdmin)
			prepareForever(e)
			e.builders.minimum = test.minimum
			p := e.process()
			vmid := p.reconcileUntilRunning()
			test.fail(e, vmid)
			p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Failing).To(BeTrue(), p.report().Message) })
			message := p.report().Message
			e.Expect(message).To(And(HavePrefix("pve1: preparing the template failed: builder VM 1000: "), ContainSubstring(test.want),
				ContainSubstring("; it is kept for inspection until "), ContainSubstring(", delete it to retry earlier; next attempt at ")))
			e.Expect(p.preparationFailures()).To(Equal([]string{message}))
			e.Expect(e.process().reconcile(t.Context(), "pve1")).To(Succeed())
			e.Expect(e.mark(vmid).Builder.Failed).NotTo(BeZero(), "kept by a restarted controller")

			e.builders.set(newBuilders().script)
			e.builders.minimum = 0
			e.Clock.Advance(61 * time.Minute)
			p = e.process()
			p.build()
			p.deleteAll()
		})
	}
}

// A failed builder VM that is not kept and was stopped does not become the template if it cannot be destroyed
// at first. The next one is created after the backoff.
func TestPrepareFailureNotKept(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareForever(e, notKept)
		p.reconcileUntilRunning()
		e.builders.set(newBuilders().script)
		e.AddFault(failingDestroy)
		e.Clock.Advance(31 * time.Minute)
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.Sim.Faults()[0].Hits).To(Equal(1))
		e.Expect(p.preparationFailures()).To(ConsistOf(And(ContainSubstring("spec.prepare.timeout"), ContainSubstring("; it is deleted; next attempt at "))))
		p.reconcileUntil(func(g Gomega) { g.Expect(e.guests()).To(BeEmpty()) })
		e.Expect(e.bootDrives()).To(BeEmpty())
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.guests()).To(BeEmpty(), "not before the backoff")

		e.Clock.Advance(time.Minute)
		p = e.process()
		p.build()
		e.Expect(e.starts()).To(Equal(2), "another builder VM prepared it")
		p.deleteAll()
	})
}

// An obsolete builder VM that was stopped to destroy it does not become the template if the
// change of the spec is reverted.
func TestPrepareObsoleteReverted(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareForever(e)
		p.reconcileUntilRunning()
		e.builders.set(newBuilders().script)
		e.AddFault(failingDestroy)
		before := e.object
		e.replaceImage()
		e.Eventually(func() int { _ = p.run(e.T.Context()); return e.Sim.Faults()[0].Hits }).Should(Equal(1))
		starts := e.starts()
		e.object = before
		p.build()
		e.Expect(e.starts()).To(Equal(starts+1), "another builder VM prepared it")
	})
}

// A builder VM that is destroyed by hand is recreated, and one that has failed at once.
func TestPrepareBuilderDestroyedByHand(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{false, true} {
		testenv.RunSimulated(t, fmt.Sprintf("failed_%t", failed), func(t *testing.T) {
			e := newEnv(t, 1)
			prepareForever(e)
			p := e.process()
			vmid := p.reconcileUntilRunning()
			if failed {
				e.Clock.Advance(31 * time.Minute)
				p.reconcileUntilMessage(ContainSubstring("; it is kept for inspection until "))
			}
			e.DestroyByHand("pve1", vmid)
			e.Expect(e.bootDrives()).To(HaveLen(1), "orphaned")
			e.Clock.Sleep(time.Second) // tasks have times in seconds, and the next builder VM gets the same VMID
			e.builders.set(newBuilders().script)
			p.refresh()
			p.build()
			e.Expect(e.starts()).To(Equal(2))
			if !failed {
				e.Expect(p.preparationFailures()).To(ContainElement("pve1: builder VM 1000 no longer exists and is recreated"))
			}
			p = e.process() // the sweep at the start needs no slot of the call budget
			p.reconcileUntil(func(g Gomega) { g.Expect(e.bootDrives()).To(BeEmpty()) })
			p.deleteAll()
		})
	}
}

// Files that the guest of a builder VM reports its progress in.
const (
	statusFile = "/run/cloud-init/status.json"
	outputFile = "/var/log/cloud-init-output.log"
	failedFile = "/run/karpenter-prepare-failed"
)

// cloudInitStatus returns cloud-init's status file, in the stage or, without one, at the end.
func cloudInitStatus(stage, failure string) string {
	current, finished := fmt.Sprintf("%q", stage), "null"
	if stage == "" {
		current, finished = "null", "1794704276.5"
	}
	if failure != "" {
		failure = fmt.Sprintf("%q", failure)
	}
	return fmt.Sprintf(`{"v1": {"datasource": "DataSourceNoCloud [seed=/dev/sr0]", "stage": %s,
 "init-local": {"errors": [], "finished": 2.5, "start": 2.1, "recoverable_errors": {}}, "init": {"errors": [], "finished": 3.5, "start": 3.1},
 "modules-config": {"errors": [%s], "finished": 4.5, "start": 4.1}, "modules-final": {"errors": [], "finished": %s, "start": null}}}`,
		current, failure, finished)
}

// withGuestFiles adds the privilege for files in guests.
func withGuestFiles(release string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Version = release
		privilege := "VM.GuestAgent.FileRead"
		if release == "8.4" {
			privilege = "VM.Monitor"
		}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, privilege)
	}
}

// newGuestEnv returns an env with a process, whose builder VMs have a guest agent and run until they are
// stopped.
func newGuestEnv(t *testing.T, changes ...func(*pvesim.Scenario)) (*env, *process) {
	t.Helper()
	e := newEnv(t, 1, changes...)
	prepareTemplates(e)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Agent = &v1alpha1.Agent{Enabled: true} })
	e.builders.set(pvesim.Script{Agent: &pvesim.Agent{ReadFile: e.builders.readFile}})
	return e, e.process()
}

// agentReads returns how many files were read from guests.
func (e *env) agentReads() int {
	return e.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/agent/file-read")
}

func TestPrepareProgress(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e, p := newGuestEnv(t, withGuestFiles("9.2"))
		p.reconcileUntilRunning()
		for _, step := range []struct{ status, want string }{
			{cloudInitStatus("init-local", ""), ": cloud-init is running stage init-local"},
			{cloudInitStatus("modules-final", "('ntp', KeyError('x'))"), ": cloud-init is running stage modules-final, with errors: ('ntp', KeyError('x'))"},
			{cloudInitStatus("", ""), ": cloud-init has finished"},
		} {
			e.builders.files.Store(statusFile, step.status)
			p.reconcileUntilMessage(And(MatchRegexp(`^pve1: preparing: builder VM 1000 runs since [^ ]*Z, for at most 30m0s: `), HaveSuffix(step.want)))
		}
		before := e.agentReads()
		for range 30 {
			e.Expect(p.run(t.Context())).To(Succeed())
		}
		e.Expect(e.agentReads()).To(Equal(before+2*5), "two files each; the sixth run is the first one more than 10 seconds later")
		e.Expect(p.report().Failing).To(BeFalse())
		p.deleteAll()
	})
}

// Without the privilege or the agent, no file is read and power-off is the only signal.
func TestPrepareProgressUnavailable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		change   func(e *env)
		reads    int
	}{
		"no_privilege": {scenario: func(s *pvesim.Scenario) { s.Version = "9.2" }},
		"agent_disabled": {scenario: withGuestFiles("9.2"), change: func(e *env) {
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Agent = nil })
		}},
		"agent_does_not_respond": {scenario: withGuestFiles("9.2"), reads: 1, change: func(e *env) {
			e.builders.set(pvesim.Script{})
		}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e, p := newGuestEnv(t, test.scenario)
			e.builders.files.Store(statusFile, cloudInitStatus("", "('scripts_user', RuntimeError('x'))"))
			if test.change != nil {
				test.change(e)
			}
			p.reconcileUntilRunning()
			for range 4 {
				e.Clock.Advance(5 * time.Second)
				e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			}
			e.Expect(p.report().Message).To(HaveSuffix("for at most 30m0s"))
			e.Expect(e.agentReads()).To(Equal(test.reads))
			e.Clock.Advance(31 * time.Minute)
			p.reconcileUntilMessage(ContainSubstring("it did not power itself off within spec.prepare.timeout 30m0s"))
			e.Expect(p.report().Message).NotTo(ContainSubstring("last output"))
		})
	}
}

// A failure that the guest reports ends the preparation before its timeout.
func TestPrepareGuestFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		late  map[string]string
		want  string
	}{
		"cloud_init_failed": {
			files: map[string]string{
				statusFile: cloudInitStatus("", "('scripts_user', RuntimeError('Runparts: 1 failures (runcmd)'))"),
				outputFile: strings.Repeat("a long line\n", 100) + "E: Unable to locate \x1b[1mpackage\x1b[0m kubelet\n",
			},
			want: "cloud-init failed: ('scripts_user', RuntimeError('Runparts: 1 failures (runcmd)')); last output: …",
		},
		"script_after_cloud_init_failed": {
			files: map[string]string{statusFile: cloudInitStatus("", "")},
			late:  map[string]string{failedFile: "+ curl -fsSL https://pkgs.k8s.io\ncurl: (6) Could not resolve host: pkgs.k8s.io\n"},
			want:  "its boot data reported a failure: + curl -fsSL https://pkgs.k8s.io curl: (6) Could not resolve host: pkgs.k8s.io; it is kept for inspection until ",
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e, p := newGuestEnv(t, withGuestFiles("9.2"))
			vmid := p.reconcileUntilRunning()
			for file, content := range test.files {
				e.builders.files.Store(file, content)
			}
			if test.late != nil {
				p.reconcileUntilMessage(HaveSuffix("cloud-init has finished"))
			}
			for file, content := range test.late {
				e.builders.files.Store(file, content)
			}
			p.reconcileUntilMessage(HavePrefix("pve1: preparing the template failed: builder VM 1000: " + test.want))
			report := p.report()
			e.Expect(report.Failing).To(BeTrue())
			e.Expect(report.Message).NotTo(ContainSubstring("spec.prepare.timeout"))
			if test.files[outputFile] != "" {
				e.Expect(report.Message).To(MatchRegexp(`a long line E: Unable to locate \W*1mpackage \[0m kubelet; it is kept`))
			}
			e.Expect(p.preparationFailures()).To(Equal([]string{report.Message}))
			e.Expect(e.mark(vmid).Builder.Failure).To(HavePrefix(strings.SplitN(test.want, ";", 2)[0]))
			e.Expect(e.Sim.Guests()).To(ContainElement(And(HaveField("VMID", vmid), HaveField("Status", "running"))), "kept for inspection")
		})
	}
}

// The timeout is reported with what the boot data printed last.
func TestPrepareTimeoutOutput(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e, p := newGuestEnv(t, withGuestFiles("8.4"))
		e.builders.files.Store(outputFile, "Reading package lists...\nWaiting for a lock\n")
		p.reconcileUntilRunning()
		e.Clock.Advance(31 * time.Minute)
		p.reconcileUntilMessage(ContainSubstring("or raise the timeout; last output: Reading package lists... Waiting for a lock; it is kept for inspection"))
	})
}
