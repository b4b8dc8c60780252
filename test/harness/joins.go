// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Boot is one power-on of a VM, as seen from beside it.
type Boot struct {
	Host string
	VMID int
	Name string
	UUID string
	// BootID is another one after each boot.
	BootID string
	// TokenID is the public half of the join token on the CD in its drive; empty
	// without a CD.
	TokenID string
}

// Witness stands between the simulator and its guests and notes what each VM
// has in its drives when it gets power.
type Witness struct {
	guests pvesim.GuestRuntime

	mu    sync.Mutex
	boots []Boot
}

// NewWitness watches the guests of a runtime.
func NewWitness(guests pvesim.GuestRuntime) *Witness { return &Witness{guests: guests} }

// tokenPattern finds a join token in the boot data: files lie in an ISO as they
// are, in one piece.
var tokenPattern = regexp.MustCompile(`token: "?([a-z0-9]{6})\.[a-z0-9]{16}\b`)

// Boot implements pvesim.GuestRuntime.
func (w *Witness) Boot(ctx context.Context, m *pvesim.Machine) {
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

// Boots so far, in their order.
func (w *Witness) Boots() []Boot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.boots)
}

// BootsOf a VM, by the UUID that it has from its claim.
func (w *Witness) BootsOf(uuid string) []Boot {
	return slices.DeleteFunc(w.Boots(), func(b Boot) bool { return !strings.EqualFold(b.UUID, uuid) })
}

const (
	bootstrapUser = "system:bootstrap:"
	nodeUser      = "system:node:"
)

// CheckJoins holds every Node name against the certificate requests: each must
// have joined by exactly one request of its own, made with the token from the
// ISO in its own drive, and no request may come from elsewhere. It gives the
// number of Nodes that did, and what is wrong in words.
func (w *Witness) CheckJoins(ctx context.Context, kube client.Client, nodes []string) (joined int, problems []string, err error) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := kube.List(ctx, requests); err != nil {
		return 0, nil, fmt.Errorf("listing certificate requests, %w", err)
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
			problems = append(problems, fmt.Sprintf("the certificate of node %s was asked for by %s, but the token on its own ISO is %s", node, request.Spec.Username, want))
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

// requestedNode is whom a certificate request is for.
func requestedNode(request certificatesv1.CertificateSigningRequest) (string, error) {
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return "", fmt.Errorf("certificate request %s holds no PEM", request.Name)
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("certificate request %s: %w", request.Name, err)
	}
	name, ok := strings.CutPrefix(content.Subject.CommonName, nodeUser)
	if !ok {
		return "", fmt.Errorf("certificate request %s is for %q, which is no node", request.Name, content.Subject.CommonName)
	}
	return name, nil
}
