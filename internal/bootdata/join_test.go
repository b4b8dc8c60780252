// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

func startPlane(t *testing.T) *harness.Plane {
	t.Helper()
	binary := os.Getenv("KUBEPLANE")
	if binary == "" {
		binary = filepath.Join("..", "..", ".cache", "bin", "kubeplane")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: no control plane at %s: build it with make, or set KUBEPLANE", binary)
	}
	plane, err := harness.StartPlane(t.Context(), harness.PlaneOptions{Binary: binary, Dir: t.TempDir()})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(plane.Stop)
	return plane
}

// bootDrive is the image that a VM of the kubeadm example boots from.
func bootDrive(t *testing.T, plane *harness.Plane, token bootdata.Token) []byte {
	t.Helper()
	data := newData(t)
	data.Values["apiServer"] = plane.Server
	data.Kubernetes.RootCA = string(plane.Config.CAData)
	data.Kubernetes.BootstrapToken = token.Value()
	data.Network = bootdata.Network{Interfaces: []bootdata.Interface{{MacAddr: "BC:24:11:7D:F3:15"}}}
	files, err := bootdata.Render(kubeadmTemplates(t), data)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	image, err := files.ISO()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return image
}

// scenarioWith is a Proxmox cluster with one VM that runs from this drive.
func scenarioWith(image []byte) *pvesim.Scenario {
	scenario := pvesim.DefaultScenario(1)
	scenario.Files = append(scenario.Files, pvesim.File{Storage: "local", Name: "iso/boot.iso", Text: string(image)})
	scenario.Guests = append(scenario.Guests, pvesim.Guest{
		VMID: 20001, Name: "default-x7k2p", Host: "pve1", Status: "running",
		Config: map[string]string{
			"memory": "6144", "cores": "2", "boot": "order=scsi0;ide2", "agent": "enabled=1",
			"scsi0": "local-lvm:vm-20001-disk-0,size=30G", "ide2": "local:iso/boot.iso,media=cdrom",
			"net0": "virtio=BC:24:11:7D:F3:15,bridge=vmbr0", "smbios1": "uuid=" + string(claim.UID),
		},
	})
	return scenario
}

// TestTheKubeadmExampleJoins follows boot data all the way: a token in a real API
// server, the example's templates, our image, and a VM that knows nothing else.
func TestTheKubeadmExampleJoins(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	plane := startPlane(t)
	tokens := &bootdata.Tokens{Client: plane.Client}
	token, err := tokens.Issue(ctx, claim)
	g.Expect(err).NotTo(HaveOccurred())
	again, err := tokens.Issue(ctx, claim)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Value()).To(Equal(token.Value()))

	runtime := guest.NewRuntime(guest.Options{HeartbeatInterval: time.Second, RestartDelay: time.Second})
	sim, err := pvesim.New(scenarioWith(bootDrive(t, plane, token)), pvesim.Options{Speed: 20, Guests: runtime})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(ctx)).To(Succeed())
	t.Cleanup(sim.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(runtime.Console(20001))
		}
	})

	node := &corev1.Node{}
	ready := func(g Gomega) {
		g.Expect(plane.Client.Get(ctx, client.ObjectKey{Name: claim.Name}, node)).To(Succeed())
		g.Expect(harness.NodeReady(node)).To(BeTrue())
	}
	g.Eventually(ready, time.Minute, 100*time.Millisecond).Should(Succeed())
	g.Expect(node.Spec.ProviderID).To(Equal("proxmox://region-1/20001"))
	g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "t1.2VCPU-6GB"))
	g.Expect(node.Labels).To(HaveKeyWithValue("karpenter.sh/nodepool", "default"))
	g.Expect(node.Spec.Taints).To(ContainElements(
		corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
		corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}))
	g.Expect(node.Status.NodeInfo.SystemUUID).To(Equal(string(claim.UID)))
	g.Expect(node.Status.Capacity.Pods().Value()).To(BeEquivalentTo(64))
	requests := &certificatesv1.CertificateSigningRequestList{}
	g.Expect(plane.Client.List(ctx, requests)).To(Succeed())
	g.Expect(requests.Items).To(HaveLen(1))
	g.Expect(requests.Items[0].Spec.Username).To(Equal("system:bootstrap:" + token.ID))
	g.Expect(requests.Items[0].Spec.Groups).To(ContainElement(bootdata.TokenGroup))

	// The token and the drive go, and the VM restarts: it is still itself.
	g.Expect(tokens.Revoke(ctx, claim.UID)).To(Succeed())
	firstBoot := node.Status.NodeInfo.BootID
	api, err := harness.NewAPI(harness.Cluster{
		URLs: []string{sim.URL()}, CA: string(sim.CAPEM()), TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	})
	g.Expect(err).NotTo(HaveOccurred())
	vm := fmt.Sprintf("/nodes/pve1/qemu/%d", 20001)
	g.Expect(api.Call(ctx, http.MethodPut, vm+"/config", url.Values{"ide2": {"none,media=cdrom"}}, nil)).To(Succeed())
	g.Expect(api.Run(ctx, http.MethodPost, vm+"/status/reboot", nil)).To(Succeed())
	g.Eventually(func(g Gomega) {
		ready(g)
		g.Expect(node.Status.NodeInfo.BootID).NotTo(Equal(firstBoot))
	}, time.Minute, 100*time.Millisecond).Should(Succeed())
	g.Expect(plane.Client.List(ctx, requests)).To(Succeed())
	g.Expect(requests.Items).To(HaveLen(1), "no other certificate was needed")
}
