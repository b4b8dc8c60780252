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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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
 "modules-config": {"errors": [%s], "finished": 4.5, "start": 4.1}, "modules-final": {"errors": [], "finished": %s, "start": null}}}`, current, failure, finished)
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

// newGuestEnv returns an env whose builder VMs have a guest agent and run until they are
// stopped.
func newGuestEnv(t *testing.T, changes ...func(*pvesim.Scenario)) *env {
	t.Helper()
	e := newEnv(t, 1, changes...)
	prepareTemplates(e)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Agent = &v1alpha1.Agent{Enabled: true} })
	e.builders.set(pvesim.Script{Agent: &pvesim.Agent{ReadFile: e.builders.readFile}})
	return e
}

// reconcileUntilMessage reconciles once per poll of the builder VM until the message matches.
func (p *process) reconcileUntilMessage(want OmegaMatcher) {
	p.env.t.Helper()
	p.reconcileUntil(func(g Gomega) {
		p.env.builders.clock.Advance(10 * time.Second)
		g.Expect(p.report().Message).To(want)
	})
}

// agentReads returns the files that were read from guests.
func (e *env) agentReads() int {
	return e.sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/agent/file-read")
}

func TestPrepareProgress(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			e := newGuestEnv(t, withGuestFiles(release))
			p := e.process()
			p.reconcileUntilRunning()
			for _, step := range []struct{ status, want string }{
				{cloudInitStatus("init-local", ""), ": cloud-init is running stage init-local"},
				{cloudInitStatus("modules-final", "('ntp', KeyError('x'))"), ": cloud-init is running stage modules-final, with errors: ('ntp', KeyError('x'))"},
				{cloudInitStatus("", ""), ": cloud-init has finished"},
			} {
				e.builders.setFile(statusFile, step.status)
				p.reconcileUntilMessage(And(MatchRegexp(`^pve1: preparing: builder VM 1000 runs since [^ ]*Z, for at most 30m0s: `), HaveSuffix(step.want)))
			}
			before, began := e.agentReads(), p.Now()
			for range 5 {
				e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			}
			e.Expect(e.agentReads()).To(BeNumerically("<=", before+1+int(p.Now().Sub(began)/(10*time.Second))), "one read per interval")
			e.Expect(p.report().Failing).To(BeFalse())
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newGuestEnv(t, test.scenario)
			e.builders.setFile(statusFile, cloudInitStatus("", "('scripts_user', RuntimeError('x'))"))
			if test.change != nil {
				test.change(e)
			}
			p := e.process()
			p.reconcileUntilRunning()
			for range 4 {
				e.builders.clock.Advance(5 * time.Second)
				e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			}
			e.Expect(p.report().Message).To(HaveSuffix("for at most 30m0s"))
			e.Expect(e.agentReads()).To(Equal(test.reads))
			e.builders.clock.Advance(31 * time.Minute)
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newGuestEnv(t, withGuestFiles("9.2"))
			p := e.process()
			vmid := p.reconcileUntilRunning()
			for file, content := range test.files {
				e.builders.setFile(file, content)
			}
			if test.late != nil {
				p.reconcileUntilMessage(HaveSuffix("cloud-init has finished"))
			}
			for file, content := range test.late {
				e.builders.setFile(file, content)
			}
			p.reconcileUntilMessage(HavePrefix("pve1: preparing the template failed: builder VM 1000: " + test.want))
			report := p.report()
			e.Expect(report.Failing).To(BeTrue())
			e.Expect(report.Message).NotTo(ContainSubstring("spec.prepare.timeout"))
			if test.files[outputFile] != "" {
				e.Expect(report.Message).To(MatchRegexp(`a long line E: Unable to locate \W*1mpackage \[0m kubelet; it is kept`))
			}
			e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(Equal([]string{report.Message}))
			e.Expect(e.mark(vmid).Builder.Failure).To(HavePrefix(strings.SplitN(test.want, ";", 2)[0]))
			e.Expect(e.sim.Guests()).To(ContainElement(And(HaveField("VMID", vmid), HaveField("Status", "running"))), "kept for inspection")
		})
	}
}

// The timeout is reported with what the boot data printed last.
func TestPrepareTimeoutOutput(t *testing.T) {
	t.Parallel()
	e := newGuestEnv(t, withGuestFiles("8.4"))
	e.builders.setFile(outputFile, "Reading package lists...\nWaiting for a lock\n")
	p := e.process()
	p.reconcileUntilRunning()
	e.builders.clock.Advance(31 * time.Minute)
	p.reconcileUntilMessage(ContainSubstring("or raise the timeout; last output: Reading package lists... Waiting for a lock; it is kept for inspection"))
}
