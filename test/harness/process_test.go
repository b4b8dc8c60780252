// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

func TestProcessHostname(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	before, err := os.Hostname()
	g.Expect(err).NotTo(HaveOccurred())
	p, err := startProcessOn("karpenter-0", "uname", log, exec.CommandContext(t.Context(), "uname", "-n"))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("SKIPPED: UTS namespaces need root; make conformance runs in a user namespace")
	}
	g.Expect(err).NotTo(HaveOccurred())
	<-p.done
	g.Expect(Tail(log, 1)).To(Equal("karpenter-0"))
	g.Expect(os.Hostname()).To(Equal(before), "the host name of this process")
}

func TestRunProcess(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	g.Expect(RunProcess(t.Context(), "true", log, exec.CommandContext(t.Context(), "true"))).To(Succeed())
	g.Expect(RunProcess(t.Context(), "sh", log, exec.CommandContext(t.Context(), "sh", "-c", "echo reason; exit 3"))).
		To(MatchError(And(ContainSubstring("exit status 3"), ContainSubstring("reason"))))
}

// The forwards of a pod need one URL of the metrics.
func TestControllerMetricsURLAfterRestart(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, err := NewController(ControllerOptions{Binary: "true", Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.StartProcess()).To(Succeed())
	<-c.Done()
	before := c.MetricsURL()
	g.Expect(c.StartProcess()).To(Succeed())
	<-c.Done()
	g.Expect(c.MetricsURL()).To(Equal(before))
}
