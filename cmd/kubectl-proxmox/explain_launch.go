// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// launchTimeline is how long the steps of a launch took, and what it waits for.
type launchTimeline struct {
	Steps []timelineStep `json:"steps"`
	// Waiting is nil if the launch has ended.
	Waiting *launchWait `json:"waiting,omitempty"`
}

type timelineStep struct {
	Step      instance.Phase     `json:"step"`
	Component instance.Component `json:"component"`
	// AtSeconds is the time since the VM was planned.
	AtSeconds   float64 `json:"atSeconds"`
	TookSeconds float64 `json:"tookSeconds"`
	Slowest     bool    `json:"slowest,omitempty"`
}

// launchWait is the step that a launch waits for.
type launchWait struct {
	Step      instance.Phase     `json:"step"`
	Component instance.Component `json:"component"`
	Seconds   float64            `json:"seconds"`
	// Check is what the launch waits for, and what to check.
	Check string `json:"check"`
}

// newLaunchTimeline returns the timeline of a NodeClaim; nil if it was not planned, or if
// another controller launched its VM. Its events show when the VM was started.
func newLaunchTimeline(claim *karpv1.NodeClaim, node *corev1.Node, history []corev1.Event, now time.Time) *launchTimeline {
	in, ok := instance.ReadIntent(claim)
	if !ok || claim.Annotations[v1alpha1.AnnotationLaunchedBy] != v1alpha1.LaunchedByVersion {
		return nil
	}
	progress := fleet.Progress(claim, node, fleet.LaunchTimes(history)[claim.UID], now)
	line, last := &launchTimeline{}, time.Duration(0)
	for _, step := range progress.Steps() {
		last = max(last, step.At)
		line.Steps = append(line.Steps, timelineStep{
			Step: step.Phase, Component: step.Phase.Component(), AtSeconds: step.At.Seconds(), TookSeconds: step.Took.Round(10 * time.Millisecond).Seconds(),
		})
	}
	if len(line.Steps) > 0 {
		slowest := slices.MaxFunc(line.Steps, func(a, b timelineStep) int { return cmp.Compare(a.TookSeconds, b.TookSeconds) })
		line.Steps[slices.Index(line.Steps, slowest)].Slowest = true
	}
	if claim.DeletionTimestamp.IsZero() && !progress.HasReached(instance.PhaseInitialized) {
		step := awaitedStep(progress)
		line.Waiting = &launchWait{
			Step: step, Component: step.Component(), Seconds: max(now.Sub(in.Time)-last, 0).Round(time.Second).Seconds(),
			Check: checkOf(step, claim, node, in),
		}
	}
	return line
}

// awaitedStep returns the step that a launch waits for.
func awaitedStep(progress instance.Progress) instance.Phase {
	switch {
	case progress.HasReached(instance.PhaseNodeReady):
		return instance.PhaseInitialized
	case progress.HasReached(instance.PhaseNodeRegistered):
		return instance.PhaseNodeReady
	case progress.HasReached(instance.PhaseStarted):
		return instance.PhaseNodeRegistered
	}
	return instance.PhaseStarted
}

// checkOf returns what a launch waits for before a step, and what to check.
func checkOf(step instance.Phase, claim *karpv1.NodeClaim, node *corev1.Node, in instance.Intent) string {
	host := in.Host
	console := fmt.Sprintf("on the console of the VM (on its host, %s: qm terminal %d), run: ", host, in.VMID)
	switch {
	case step == instance.PhaseStarted && in.Parked:
		return "no host has capacity for the VM; to see the free capacity, run: kubectl proxmox hosts"
	case step == instance.PhaseStarted:
		return fmt.Sprintf("Proxmox clones, configures and starts VM %d, unless other clones on storage %s run first (--proxmox-clone-slots), or an event above names what the launch waits for; check the tasks of the VM on host %s", in.VMID, in.Storage, host)
	case step == instance.PhaseNodeRegistered:
		return "the guest boots, reads its boot data, starts the kubelet and gets its certificate; " + console +
			"cloud-init status --long; journalctl -u kubelet; to see the boot data, run: kubectl proxmox render --nodeclaim " + claim.Name +
			"; to see whether the certificate request is approved, run: kubectl get csr; the chart value nodeBootstrap.create approves it automatically"
	case step == instance.PhaseNodeReady && node != nil:
		ready := nodeutils.GetCondition(node, corev1.NodeReady)
		return fmt.Sprintf("node %s is not Ready: %s; run: kubectl describe node %s", node.Name, cmp.Or(ready.Message, "the kubelet has not reported its status"), node.Name)
	}
	// Karpenter checks the provider ID for Registered, and taints and resources for Initialized.
	for _, name := range []string{karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		if condition := claim.StatusConditions().Get(name); !condition.IsTrue() {
			return conditionText(*condition)
		}
	}
	return ""
}

func (l *launchTimeline) print(out io.Writer) error {
	if _, err := io.WriteString(out, "launch timeline\n"); err != nil {
		return err
	}
	err := table(out, "  STEP\tCOMPONENT\tAT\tTOOK", func(out io.Writer) {
		for _, s := range l.Steps {
			mark := ""
			if s.Slowest {
				mark = ", slowest"
			}
			_, _ = fmt.Fprintf(out, "  %s\t%s\t%s\t%s%s\n", s.Step, s.Component, shortSeconds(s.AtSeconds), shortSeconds(s.TookSeconds), mark)
		}
		if w := l.Waiting; w != nil {
			_, _ = fmt.Fprintf(out, "  %s\t%s\t-\t%s, waiting\n", w.Step, w.Component, shortSeconds(w.Seconds))
		}
	})
	if err != nil || l.Waiting == nil {
		return err
	}
	_, err = fmt.Fprintf(out, "  waiting for %s: %s\n", l.Waiting.Step, terminal.Printable(l.Waiting.Check))
	return err
}

// shortSeconds formats seconds as "4.2s" or "3m12s".
func shortSeconds(s float64) string {
	if s < 10 {
		return fmt.Sprintf("%.1fs", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
