// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// flaky is an API server that fails some writes, and returns an error for others that
// succeed. After its last write all fail, as if the process were killed.
type flaky struct {
	client.Client
	mu     sync.Mutex
	random *rand.Rand
	writes int
}

var errRefused = errors.New("refused")

func (f *flaky) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	f.mu.Lock()
	f.writes--
	killed, dice := f.writes < 0, f.random.IntN(20)
	f.mu.Unlock()
	if killed || dice == 0 {
		return errRefused
	}
	if err := f.Client.Patch(ctx, obj, patch, opts...); err != nil || dice != 1 {
		return err
	}
	return errRefused
}

// propertyPools of three classes have 36, 60 and 150 addresses for a third of the
// requests each.
var propertyPools = []v1alpha1.AddressSource{
	{CIDR: "10.1.0.0/24", Ranges: []string{"10.1.0.1-10.1.0.41"}, Exclude: []string{"10.1.0.10-10.1.0.13"}, Gateway: "10.1.0.1"},
	{CIDR: "10.2.0.0/24", Ranges: []string{"10.2.0.0-10.2.0.60"}, Gateway: "10.2.0.254"},
	{CIDR: "fd00::/64", Ranges: []string{"fd00::1-fd00::96"}, Gateway: "fe80::1"},
}

// largeHost is a Host with more capacity than addresses.
func largeHost(s *pvesim.Scenario) {
	s.Hosts[0].Cores, s.Hosts[0].Memory = 8192, 64*pvesim.TiB
	s.Storages[1].Size = 900 * pvesim.TiB
}

// 300 concurrent requests with three pools, while the API server fails writes,
// Claims are deleted and the controller is killed repeatedly: no address is assigned
// twice, none is lost, and errors name the exhausted pool.
func TestPlanAddressesConcurrently(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.NewFake(t, testenv.Scenario(largeHost))
		random := rand.New(rand.NewPCG(7, 7))
		classes := make([]*v1alpha1.ProxmoxNodeClass, len(propertyPools))
		for n, source := range propertyPools {
			classes[n] = w.NodeClass.DeepCopy()
			classes[n].Name = fmt.Sprintf("class-%d", n)
			addresses := v1alpha1.VMInterface{Name: "net0", Address4: &source}
			if strings.Contains(source.CIDR, ":") {
				addresses = v1alpha1.VMInterface{Name: "net0", Address6: &source}
			}
			classes[n].Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{addresses}}
		}

		const requests = 300
		waiting := make([]*karpv1.NodeClaim, requests)
		for i := range waiting {
			waiting[i] = w.Claim(fmt.Sprintf("c-%d", i), w.NodeClass)
		}
		refused, restarts := 0, 0
		for len(waiting) > 0 {
			// All processes but the last are killed.
			api := &flaky{Client: w.Kube, random: random, writes: 15 + random.IntN(15)}
			if restarts >= 6 {
				api.writes = requests * requests
			}
			p := w.StartProcess(testenv.NoPolling(), testenv.Kube(api))
			var exhausted int
			waiting, exhausted = planAll(w, p, api, waiting, classes)
			refused += exhausted
			expectUniqueAddresses(w)
			deleteSome(w, p, random, waiting)
			restarts++
		}
		t.Logf("%d processes, %d requests without an address", restarts, refused)
		w.Expect(restarts).To(BeNumerically(">", 6), "processes were killed with requests in progress")
		w.Expect(refused).To(BeNumerically(">", 15), "the small pools were exhausted")

		// All addresses are released with the claims.
		p := w.StartProcess(testenv.NoPolling())
		claims := &karpv1.NodeClaimList{}
		w.Expect(w.Kube.List(t.Context(), claims)).To(Succeed())
		for i := range claims.Items {
			w.Expect(w.Kube.Delete(t.Context(), &claims.Items[i])).To(Succeed())
			p.Instances.Planner.Release(string(claims.Items[i].UID))
		}
		for i := range 37 {
			claim := w.Claim(fmt.Sprintf("second-%d", i), w.NodeClass)
			_, err := p.Instances.Planner.Plan(t.Context(), claim, classes[0], false)
			if i < 36 {
				w.Expect(err).NotTo(HaveOccurred(), "address %d of 36 was lost", i+1)
				continue
			}
			w.Expect(err).To(MatchError(ContainSubstring("all 36 addresses of 10.1.0.0/24 are taken")))
		}
	})
}

// planAll plans all claims concurrently, and returns those to retry. Claims without an
// address are deleted, as by core.
func planAll(w *testenv.Env, p *testenv.Process, api client.Client, claims []*karpv1.NodeClaim, classes []*v1alpha1.ProxmoxNodeClass) (retry []*karpv1.NodeClaim, exhausted int) {
	w.T.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, claim := range claims {
		all.Go(func() {
			number, err := strconv.Atoi(strings.TrimPrefix(claim.Name, "c-"))
			if err == nil {
				var in instance.Intent
				in, err = p.Instances.Planner.Plan(w.Context(), claim, classes[number%len(classes)], false)
				if err == nil {
					err = testenv.StorePlan(w.Context(), api, claim, classes[number%len(classes)], in)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
			case errors.Is(err, errRefused):
				retry = append(retry, claim)
			case strings.Contains(err.Error(), "are taken"):
				exhausted++
				err = w.Kube.Delete(w.Context(), claim)
				fallthrough
			default:
				if err != nil {
					w.T.Errorf("claim %s: %v", claim.Name, err)
				}
			}
		})
	}
	all.Wait()
	return retry, exhausted
}

// expectUniqueAddresses checks that no two claims have the same address.
func expectUniqueAddresses(w *testenv.Env) {
	w.T.Helper()
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.Kube.List(w.Context(), claims)).To(Succeed())
	owners := map[netip.Addr]string{}
	for i := range claims.Items {
		in, ok := instance.ReadIntent(&claims.Items[i])
		if !ok {
			continue
		}
		for _, addr := range in.Network.Addresses() {
			w.Expect(owners).NotTo(HaveKey(addr), "%s and %s have the same", claims.Items[i].Name, owners[addr])
			owners[addr] = claims.Items[i].Name
		}
	}
	w.Expect(owners).NotTo(BeEmpty())
}

// deleteSome deletes a third of the claims with an address, some of them without the
// controller.
func deleteSome(w *testenv.Env, p *testenv.Process, random *rand.Rand, waiting []*karpv1.NodeClaim) {
	w.T.Helper()
	pending := map[string]bool{}
	for _, claim := range waiting {
		pending[claim.Name] = true
	}
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.Kube.List(w.Context(), claims)).To(Succeed())
	for i := range claims.Items {
		if pending[claims.Items[i].Name] || random.IntN(3) > 0 {
			continue
		}
		w.Expect(w.Kube.Delete(w.Context(), &claims.Items[i])).To(Succeed())
		if random.IntN(2) == 0 {
			p.Instances.Planner.Release(string(claims.Items[i].UID))
		}
	}
}
