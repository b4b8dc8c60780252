// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Component is where the time of a step is spent.
type Component string

// The components.
const (
	ComponentProxmox Component = "Proxmox"
	ComponentGuest   Component = "guest"
	ComponentCluster Component = "cluster"
)

// launchStep is a step of each launch.
type launchStep struct {
	phase     Phase
	component Component
	// parallel steps start with the launch and not after the steps before them.
	parallel bool
}

// launchSteps are in the order in which they end, except parallel ones. The network
// plugin and startup taints, which both belong to the cluster, delay the last two.
var launchSteps = []launchStep{
	{phase: PhaseHostAwake, component: ComponentProxmox},
	{phase: PhaseCloning, component: ComponentProxmox},
	{phase: PhaseCloned, component: ComponentProxmox},
	{phase: PhaseBootDrive, component: ComponentProxmox, parallel: true},
	{phase: PhaseConfigured, component: ComponentProxmox},
	{phase: PhaseStarted, component: ComponentProxmox},
	{phase: PhaseCertificateRequested, component: ComponentGuest},
	{phase: PhaseCertificateApproved, component: ComponentCluster},
	{phase: PhaseNodeRegistered, component: ComponentGuest},
	{phase: PhaseNodeReady, component: ComponentCluster},
	{phase: PhaseInitialized, component: ComponentCluster},
}

// observedSteps are the steps after PhaseStarted.
var observedSteps = launchSteps[1+slices.IndexFunc(launchSteps, func(s launchStep) bool { return s.phase == PhaseStarted }):]

// Component returns where the time before the phase is spent.
func (p Phase) Component() Component {
	for _, step := range launchSteps {
		if step.phase == p {
			return step.component
		}
	}
	return ""
}

// Step is a step of a launch that has ended.
type Step struct {
	Phase Phase
	// At is the time since the intent.
	At time.Duration
	// Took is the time since the end of the steps before it.
	Took time.Duration
}

// Steps returns the steps that have ended, the first one first. No duration is negative.
func (p Progress) Steps() []Step {
	var steps []Step
	var before time.Duration
	for _, s := range launchSteps {
		after, reached := p[s.phase]
		if !reached {
			continue
		}
		step := Step{Phase: s.phase, At: max(after, 0)}
		step.Took = step.At
		if !s.parallel {
			step.Took = max(step.At-before, 0)
		}
		before = max(before, step.At)
		steps = append(steps, step)
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// Observed are the objects that show what guest and cluster did after the VM was started.
type Observed struct {
	// Node is nil until it is registered.
	Node *corev1.Node
	// Requests are the certificate requests for the Claim's Node.
	Requests []certificatesv1.CertificateSigningRequest
}

// Observe adds the steps of guest and cluster that the objects show. It does nothing if another
// controller launched the VM.
//
// The times are of several clocks: those of this controller, of the API server, and for
// PhaseNodeReady of the guest. Where they contradict, a step ends not before the step
// before it, not after the next one, and not in the future.
func (p Progress) Observe(claim *karpv1.NodeClaim, planned time.Time, o Observed, now time.Time) {
	if claim.Annotations[v1alpha1.AnnotationLaunchedBy] != v1alpha1.LaunchedByVersion {
		return
	}
	found, bound := map[Phase]time.Duration{}, now.Sub(planned)
	times := observedTimes(claim, o)
	for _, step := range slices.Backward(observedSteps) {
		if at, ok := times[step.phase]; ok {
			found[step.phase] = min(bound, at.Sub(planned))
			if step.phase != PhaseNodeReady { // the clock of a guest may be hours behind
				bound = found[step.phase]
			}
		}
	}
	last := p[PhaseStarted]
	for _, step := range observedSteps {
		if after, ok := found[step.phase]; ok {
			last = max(last, after)
			p.Reach(step.phase, last)
		}
	}
}

// observedTimes returns when the observed steps ended, as the objects show it.
func observedTimes(claim *karpv1.NodeClaim, o Observed) map[Phase]time.Time {
	times := map[Phase]time.Time{}
	add := func(phase Phase, at time.Time) {
		if earliest, ok := times[phase]; !at.IsZero() && (!ok || at.Before(earliest)) {
			times[phase] = at
		}
	}
	for _, request := range o.Requests {
		if request.CreationTimestamp.Before(&claim.CreationTimestamp) {
			continue // of an earlier Node with this name
		}
		add(PhaseCertificateRequested, request.CreationTimestamp.Time)
		for _, condition := range request.Status.Conditions {
			if condition.Type == certificatesv1.CertificateApproved {
				add(PhaseCertificateApproved, condition.LastUpdateTime.Time)
			}
		}
	}
	if o.Node != nil {
		add(PhaseNodeRegistered, o.Node.CreationTimestamp.Time)
		if ready := nodeutils.GetCondition(o.Node, corev1.NodeReady); ready.Status == corev1.ConditionTrue {
			add(PhaseNodeReady, ready.LastTransitionTime.Time)
		}
	}
	if initialized := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized); initialized.IsTrue() {
		add(PhaseInitialized, initialized.LastTransitionTime.Time)
	}
	return times
}

// nodeUser is the prefix of the user name of a kubelet.
const nodeUser = "system:node:"

// JoiningNode returns the Node whose kubelet requests its first certificate; empty if the
// request is for another certificate, or renews one.
func JoiningNode(request *certificatesv1.CertificateSigningRequest) string {
	if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || strings.HasPrefix(request.Spec.Username, nodeUser) {
		return ""
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return ""
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	node, ok := strings.CutPrefix(content.Subject.CommonName, nodeUser)
	if !ok {
		return ""
	}
	return node
}
