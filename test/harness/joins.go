// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Boot is one start of a VM as the simulator sees it.
type Boot struct {
	Host string
	VMID int
	Name string
	UUID string
	// BootID changes with every boot.
	BootID string
	// TokenID is the public part of the join token on the CD in the VM's drive. It is empty
	// without a CD.
	TokenID string
}

// BootRecorder is a guest runtime that records what each VM has in its drives when it starts,
// and passes the boot on to the actual runtime.
type BootRecorder struct {
	guests pvesim.GuestRuntime

	mu    sync.Mutex
	boots []Boot
}

// NewBootRecorder returns a recorder that passes boots on to guests.
func NewBootRecorder(guests pvesim.GuestRuntime) *BootRecorder { return &BootRecorder{guests: guests} }

// tokenPattern finds a join token in the boot data. An ISO stores files uncompressed and
// contiguously.
var tokenPattern = regexp.MustCompile(`token: "?([a-z0-9]{6})\.[a-z0-9]{16}\b`)

// Boot implements pvesim.GuestRuntime.
func (w *BootRecorder) Boot(ctx context.Context, m *pvesim.Machine) {
	boot := Boot{Host: m.Host, VMID: m.VMID, Name: m.Name, UUID: m.UUID, BootID: m.BootID}
	for _, cd := range m.CDROMs() {
		if found := tokenPattern.FindSubmatch(cd.Image); found != nil {
			boot.TokenID = string(found[1])
		}
	}
	w.mu.Lock()
	w.boots = append(w.boots, boot)
	w.mu.Unlock()
	w.guests.Boot(ctx, m)
}

// Boots returns all boots in order.
func (w *BootRecorder) Boots() []Boot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.boots)
}

// BootsOf returns the boots of the VM with the given UUID, which is its NodeClaim's UID.
func (w *BootRecorder) BootsOf(uuid string) []Boot {
	return slices.DeleteFunc(w.Boots(), func(b Boot) bool { return !strings.EqualFold(b.UUID, uuid) })
}

const (
	bootstrapUser = "system:bootstrap:"
	nodeUser      = "system:node:"
)

// CheckJoins compares the Node names with the certificate requests: each Node must have made
// exactly one request, with the token from the ISO in its own drive, and no other requests may
// exist. It returns the number of Nodes that did so and a list of problems.
func (w *BootRecorder) CheckJoins(ctx context.Context, kube client.Client, nodes []string) (joined int, problems []string, err error) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := kube.List(ctx, requests); err != nil {
		return 0, nil, fmt.Errorf("listing certificate requests: %w", err)
	}
	tokens := map[string]string{} // of the first boot, by name
	for _, boot := range w.Boots() {
		if _, later := tokens[boot.Name]; !later {
			tokens[boot.Name] = boot.TokenID
		}
	}
	made := map[string]int{}
	for _, request := range requests.Items {
		if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
			continue
		}
		node, err := requestedNode(request)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		made[node]++
		if want := bootstrapUser + tokens[node]; request.Spec.Username != want {
			problems = append(problems, fmt.Sprintf("the certificate of node %s was requested by %s, but the token on its own ISO is %s", node, request.Spec.Username, want))
		}
	}
	for _, node := range nodes {
		if made[node] == 1 {
			joined++
			continue
		}
		problems = append(problems, fmt.Sprintf("node %s made %d certificate requests, want 1", node, made[node]))
	}
	return joined, problems, nil
}

// requestedNode returns the Node that a certificate request is for.
func requestedNode(request certificatesv1.CertificateSigningRequest) (string, error) {
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return "", fmt.Errorf("certificate request %s contains no PEM block", request.Name)
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("certificate request %s: %w", request.Name, err)
	}
	name, ok := strings.CutPrefix(content.Subject.CommonName, nodeUser)
	if !ok {
		return "", fmt.Errorf("certificate request %s is for %q, which is not a node", request.Name, content.Subject.CommonName)
	}
	return name, nil
}

// Milestone is a step on the way from a NodeClaim to a running pod.
type Milestone struct {
	Name string
	// After is the time since the NodeClaim was created.
	After time.Duration
}

// Timeline is the milestones of one Node in order.
type Timeline []Milestone

// ReadTimeline returns when the steps of a NodeClaim's launch happened, as far as they
// happened. The times of Kubernetes objects are whole seconds.
func ReadTimeline(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim) (Timeline, error) {
	var line Timeline
	created := claim.CreationTimestamp.Time
	add := func(name string, at time.Time) {
		if !at.IsZero() {
			line = append(line, Milestone{name, max(at.Sub(created), 0)})
		}
	}
	history := &corev1.EventList{}
	if err := kube.List(ctx, history, client.MatchingFields{"involvedObject.uid": string(claim.UID), "reason": v1alpha1.EventVMLaunched}); err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	add("VM powered on", fleet.LaunchTimes(history.Items)[claim.UID])
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := kube.List(ctx, requests); err != nil {
		return nil, fmt.Errorf("listing certificate requests: %w", err)
	}
	for _, request := range requests.Items {
		if name, err := requestedNode(request); err == nil && name == claim.Name && strings.HasPrefix(request.Spec.Username, bootstrapUser) {
			add("kubelet requested its certificate", request.CreationTimestamp.Time)
		}
	}
	node := &corev1.Node{}
	if err := kube.Get(ctx, client.ObjectKey{Name: claim.Name}, node); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading node: %w", err)
	}
	add("Node registered", node.CreationTimestamp.Time)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			add("Node Ready", condition.LastTransitionTime.Time)
		}
	}
	if condition := claim.StatusConditions().Get(karpv1.ConditionTypeInitialized); condition.IsTrue() {
		add("NodeClaim initialized", condition.LastTransitionTime.Time)
	}
	slices.SortStableFunc(line, func(a, b Milestone) int { return cmp.Compare(a.After, b.After) })
	return line, nil
}

// String returns one line per milestone.
func (t Timeline) String() string {
	var out strings.Builder
	for _, m := range t {
		fmt.Fprintf(&out, "%8.1fs  %s\n", m.After.Seconds(), m.Name)
	}
	return strings.TrimSuffix(out.String(), "\n")
}
