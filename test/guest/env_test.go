// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	region = "home"

	debian12 = "debian-12.qcow2"
	// testImage is a container image in the guests, with an HTTP server and client.
	testImage = "localhost/guest-test:latest"

	dhcpBridge   = "vmbr0"
	dhcpGateway  = "10.10.0.1"
	staticBridge = "vmbr1"
	// templateWithDisk is a template with a second disk.
	templateWithDisk = "with-disk"

	// bootTimeout is for emulated guests on a busy machine. It is shorter than Karpenter's 15 minutes, after which it
	// deletes a NodeClaim whose Node did not register.
	bootTimeout   = 14 * time.Minute
	deleteTimeout = 5 * time.Minute
	pollInterval  = 2 * time.Second
	// progressInterval is how often a step that is not complete is logged.
	progressInterval = time.Minute
)

// env is a control plane, a Proxmox cluster with real guests, and a controller.
type env struct {
	plane      *harness.Plane
	guests     *harness.Guests
	proxmox    *harness.Proxmox
	controller *harness.Controller
	kube       client.WithWatch

	controllerOptions harness.ControllerOptions
	// shutdown is the controller's timeout for the shutdown of guests.
	shutdown time.Duration
	// images is the URL of the images.
	images string
	// cluster is the ID of the Kubernetes cluster, which identifies its VMs.
	cluster string
}

// required returns an environment variable. It skips the test if it is not set.
func required(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Skipf("SKIPPED: %s must be set; make e2e-guest builds images and binaries and sets it", name)
	}
	return value
}

func newEnv(t *testing.T) *env {
	t.Helper()
	kubeplane, controller, images := required(t, "KUBEPLANE"), required(t, "CONTROLLER"), required(t, "GUEST_IMAGES")
	dir := cmp.Or(os.Getenv("GUEST_LOGS"), t.TempDir())
	must(t, os.MkdirAll(dir, 0o700))
	ctx, e := t.Context(), &env{}
	var err error
	e.guests, err = harness.NewGuests(harness.GuestOptions{Images: images, ConsoleDir: dir, Log: func(m string) { t.Log(m) }, Bridges: map[string]network.Bridge{
		dhcpBridge:   {Gateway4: netip.MustParsePrefix(dhcpGateway + "/16"), DHCP: true},
		staticBridge: {Gateway4: netip.MustParsePrefix("10.20.0.1/16"), Gateway6: netip.MustParsePrefix("fd10:20::1/64")},
	}})
	must(t, err)
	t.Cleanup(e.guests.Close)
	e.proxmox, err = harness.StartProxmox(ctx, harness.ProxmoxOptions{Hosts: 1, Version: "9.2", Guests: e.guests, Scenario: adaptScenario})
	must(t, err)
	t.Cleanup(e.proxmox.Close)
	e.plane, err = harness.StartPlane(ctx, harness.PlaneOptions{Binary: kubeplane, Dir: filepath.Join(dir, "kubernetes"), ServerIPs: e.guests.Gateways()})
	must(t, err)
	t.Cleanup(e.plane.Stop)
	e.kube = e.plane.Client
	must(t, harness.InstallCRDs(ctx, e.kube))
	system := &corev1.Namespace{}
	must(t, e.kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	e.cluster = string(system.UID)
	e.controllerOptions = harness.ControllerOptions{
		Binary: controller, Dir: filepath.Join(dir, "controller"), Kubeconfig: e.plane.Kubeconfig, Clusters: []harness.Cluster{e.proxmox.Cluster(region)},
	}
	e.startController(t, shutdownTimeout)
	t.Cleanup(func() { e.controller.Stop() })
	server := httptest.NewServer(newImageServer(images))
	t.Cleanup(server.Close)
	e.images = server.URL
	api, err := e.guests.Server(e.plane, dhcpBridge, false)
	must(t, err)
	must(t, e.plane.PlaceSnippet(ctx, e.proxmox, api, region))
	return e
}

// startController starts the controller with a timeout for the shutdown of guests, unless it runs with that already.
func (e *env) startController(t *testing.T, shutdown time.Duration) {
	t.Helper()
	if e.controller != nil {
		if e.shutdown == shutdown {
			return
		}
		e.controller.Stop()
	}
	e.controllerOptions.Args, e.controllerOptions.Durations = []string{"--shutdown-timeout=" + shutdown.String()}, "template-grace-period=2s"
	controller, err := harness.NewController(e.controllerOptions)
	must(t, err)
	must(t, controller.Start(t.Context()))
	e.controller, e.shutdown = controller, shutdown
}

// adaptScenario adds a network without DHCP and a template with a second disk, and allows to read the guests' addresses
// and to use directory mappings.
func adaptScenario(s *pvesim.Scenario) {
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "VM.GuestAgent.Audit", "Mapping.Audit", "Mapping.Use")
	for i := range s.Hosts {
		s.Hosts[i].Bridges = append(s.Hosts[i].Bridges, pvesim.Bridge{Name: staticBridge})
	}
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100, Name: templateWithDisk, Host: s.Hosts[0].Name, Config: map[string]string{
		"template": "1", "memory": "2048", "cores": "2", "ostype": "l26", "scsihw": "virtio-scsi-single", "boot": "order=scsi0",
		"scsi0": "local-lvm:base-9100-disk-0,size=3G", "scsi1": "local-lvm:base-9100-disk-1,size=2G",
		"net0": "virtio=BC:24:11:00:91:00,bridge=" + dhcpBridge, "serial0": "socket", "vga": "serial0", "agent": "enabled=1",
		"smbios1": "uuid=00000000-0000-4000-8000-000000009100",
	}})
}

// proxmoxCloudInit uses Proxmox's cloud-init drive, as examples/proxmox-cloud-init.
func proxmoxCloudInit(t *testing.T, _ *env, kit *harness.Kit) {
	t.Helper()
	class, err := harness.ProxmoxCloudInitClass()
	must(t, err)
	kit.Class.Spec.MetadataOptions = class.Spec.MetadataOptions
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within polls until the condition returns nil, and logs what is missing. At the timeout, and if the controller exits, it
// fails with the last error.
func (e *env) within(t testing.TB, limit time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began, reported := time.Now(), time.Now()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if time.Since(reported) >= progressInterval {
			reported = time.Now()
			t.Logf("waiting for %s since %.0f s: %v", what, time.Since(began).Seconds(), err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting %s for %s: %v", limit, what, err)
		case <-e.controller.Done():
			t.Fatalf("waiting for %s: %v", what, e.controller.ExitError())
		case <-time.After(pollInterval):
		}
	}
}

// dump logs the state of a failed case.
func (e *env) dump(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	t.Logf("controller log:\n%s", harness.Tail(e.controller.Log(), 40))
	harness.Dump(ctx, e.kube, e.proxmox.API, t.Logf, func(g harness.Guest) string {
		if !g.OwnedBy(e.cluster) || g.Status != "running" {
			return ""
		}
		const script = "systemctl --failed --no-legend; ip -brief address; ip route; ip -6 route; journalctl -u kubelet -u containerd -n 60 --no-pager"
		out, err := e.guests.Exec(ctx, g.VMID, "/bin/sh", "-c", script)
		return fmt.Sprintf("%s\nfailed units, network and log (%v):\n%s", harness.Tail(e.guests.ConsoleLog(g.VMID), 40), err, out)
	})
}

// cleanUp deletes what a failed case left, so it does not affect the next one.
func (e *env) cleanUp(t *testing.T, c testCase) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deleteTimeout)
	defer cancel()
	name := metav1.ObjectMeta{Name: c.name}
	for _, object := range []client.Object{
		harness.Deployment(c.name, 0), &karpv1.NodePool{ObjectMeta: name}, &v1alpha1.ProxmoxNodeClass{ObjectMeta: name}, &v1alpha1.ProxmoxTemplate{ObjectMeta: name},
	} {
		if err := e.kube.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			t.Logf("deleting %s: %v", c.name, err)
		}
	}
	for {
		left, err := harness.LeakedObjects(ctx, e.kube)
		if err == nil && len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Logf("deleting the Nodes of %s: %v %v", c.name, left, err)
			return
		case <-time.After(pollInterval):
		}
	}
}

// expectUnchanged waits until Kubernetes and Proxmox are as before and no QEMU process runs.
func (e *env) expectUnchanged(t *testing.T, before harness.Holdings) {
	t.Helper()
	e.within(t, deleteTimeout, "Kubernetes and Proxmox to be as before", func(ctx context.Context) error {
		left, err := before.Leaks(ctx, e.proxmox.API, e.kube)
		if err == nil && len(left) > 0 {
			err = errors.New(strings.Join(left, "; "))
		}
		return err
	})
	if processes, _ := exec.CommandContext(t.Context(), "pgrep", "--full", "--list-full", "qemu-system.*"+e.guests.Dir()).Output(); len(processes) > 0 {
		t.Errorf("these processes are left:\n%s", processes)
	}
	if files, err := filepath.Glob(filepath.Join(e.guests.Dir(), "*disk*")); err != nil || len(files) > 0 {
		t.Errorf("these files are left (%v): %v", err, files)
	}
}

// server returns the URL of the API server for a case.
func (e *env) server(t *testing.T, c testCase) string {
	t.Helper()
	server, err := e.guests.Server(e.plane, c.network(), c.ipv6)
	must(t, err)
	return server
}

// network returns the bridge of a case.
func (c testCase) network() string { return cmp.Or(c.bridge, dhcpBridge) }

// sourceImage returns the image of a case.
func (c testCase) sourceImage() string { return cmp.Or(c.image, harness.GuestImage) }

// count returns the number of Nodes of a case.
func (c testCase) count() int { return max(c.nodes, 1) }

func notFound(err error, what string) error {
	if err == nil {
		return fmt.Errorf("%s exists", what)
	}
	return client.IgnoreNotFound(err)
}
