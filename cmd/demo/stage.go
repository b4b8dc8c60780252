// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	region       = "home"
	namespace    = corev1.NamespaceDefault
	nodePoolName = "demo"
	hosts        = 3

	// Short times, so the demo shows a host failure quickly. The defaults are 50 seconds and
	// five minutes.
	heartbeat   = 2 * time.Second
	gracePeriod = 10 * time.Second
	toleration  = 5 // seconds
	pollProxmox = 2 * time.Second
	// A real VM's kernel takes ten seconds or more; this is long enough to see the phase.
	bootTime = 2 * time.Second

	classTimeout = 45 * time.Second
)

// Stage is everything that runs: control plane, Proxmox and controller.
type Stage struct {
	Dir        string
	Plane      *harness.Plane
	Proxmox    *harness.Proxmox
	Controller *harness.Controller
	Kit        *harness.Kit
	// Guests are real guests, or nil.
	Guests *realGuests
	// Observer reads what runs.
	Observer *observer
	// Before is what Proxmox stored before the tour.
	Before harness.Holdings
}

// startStage starts everything. It calls progress before each part.
func startStage(ctx context.Context, o options, progress func(string)) (*Stage, error) {
	s := &Stage{Dir: o.dir}
	err := s.build(ctx, o, progress)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stage) build(ctx context.Context, o options, progress func(string)) (err error) {
	plane := harness.PlaneOptions{Binary: o.kubeplane, Dir: filepath.Join(o.dir, "kubernetes"), NodeMonitorGracePeriod: gracePeriod}
	proxmox := harness.ProxmoxOptions{Hosts: hosts, Speed: o.speed, Heartbeat: heartbeat, BootTime: bootTime, Admin: o.playground}
	if o.guests == "qemu" {
		if s.Guests, err = newRealGuests(ctx, o.dir, o.images); err != nil {
			return err
		}
		proxmox.Guests, plane.ServerIPs = s.Guests.Guests, s.Guests.Gateways()
		plane.NodeMonitorGracePeriod = 0 // the default, for kubelets with the default heartbeat
	}
	progress("Kubernetes control plane: etcd, API server, controller manager, scheduler")
	if s.Plane, err = harness.StartPlane(ctx, plane); err != nil {
		return err
	}
	if err := harness.InstallCRDs(ctx, s.Plane.Client); err != nil {
		return err
	}
	progress(fmt.Sprintf("simulated Proxmox VE cluster with %d hosts and some existing guests", hosts))
	if s.Proxmox, err = harness.StartProxmox(ctx, proxmox); err != nil {
		return err
	}
	if s.Before, err = s.Proxmox.API.Holdings(ctx); err != nil {
		return err
	}
	if s.Observer, err = newObserver(ctx, s.Plane.Client, s.Proxmox.Cluster(region)); err != nil {
		return err
	}
	progress("controller")
	s.Controller, err = harness.NewController(harness.ControllerOptions{
		Binary: o.controller, Dir: filepath.Join(o.dir, "controller"), Kubeconfig: s.Plane.Kubeconfig,
		Clusters: []harness.Cluster{s.Proxmox.Cluster(region)}, PollInterval: pollProxmox,
	})
	if err != nil {
		return err
	}
	if err := s.Controller.Start(ctx); err != nil {
		return err
	}
	progress("NodeClass and NodePool of examples/kubeadm")
	if s.Kit, err = s.newKit(); err != nil {
		return err
	}
	if err := s.Kit.Apply(ctx, s.Plane.Client); err != nil {
		return err
	}
	return s.classReady(ctx)
}

// newKit returns the kubeadm example, adapted to the demo.
func (s *Stage) newKit() (*harness.Kit, error) {
	server := s.Plane.Server
	if s.Guests != nil {
		var err error
		if server, err = s.Guests.Server(s.Plane, bridge, false); err != nil {
			return nil, err
		}
	}
	kit, err := harness.NewKit(nodePoolName, server)
	if err != nil {
		return nil, err
	}
	if s.Guests != nil {
		kit.Values.StringData["sshAuthorizedKeys"] = s.Guests.publicKey
	}
	adaptKit(kit)
	return kit, nil
}

// playgroundCommand returns the command that starts the same setup as a playground.
func (s *Stage) playgroundCommand() string {
	if s.Guests != nil {
		return "make playground GUESTS=qemu"
	}
	return "make playground"
}

// playgroundPods returns the number of pods that the playground suggests. Real VMs use the CPUs and memory of this machine.
func (s *Stage) playgroundPods() int {
	if s.Guests != nil {
		return 1
	}
	return 5
}

// adaptKit allows only small VMs, so there are several, and disables consolidation until the
// last step.
func adaptKit(kit *harness.Kit) {
	kit.Class.Spec.VMSize.Min = v1alpha1.VMSize{CPU: 2, Memory: "2Gi"} // enough for a real guest
	kit.Class.Spec.VMSize.Max = v1alpha1.VMSize{CPU: 4, Memory: "16Gi"}
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	// The default deletes one node in ten at a time, which takes too long for a demo.
	kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
}

func (s *Stage) classReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, classTimeout)
	defer cancel()
	class := &v1alpha1.ProxmoxNodeClass{}
	for {
		err := s.Plane.Client.Get(ctx, client.ObjectKey{Name: nodePoolName}, class)
		if err == nil && class.StatusConditions().Root().IsTrue() {
			return nil
		}
		select {
		case <-s.Controller.Done():
			return s.Controller.ExitError()
		case <-ctx.Done():
			return fmt.Errorf("waiting for nodeclass %s to be Ready: %s", nodePoolName, class.StatusConditions().Root().Message)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waitForExit returns an error if the controller or the control plane exits before the context
// ends.
func (s *Stage) waitForExit(ctx context.Context) error {
	select {
	case <-s.Controller.Done():
		return s.Controller.ExitError()
	case <-s.Plane.Done():
		return s.Plane.ExitError()
	case <-ctx.Done():
		return nil
	}
}

// Close stops everything in reverse order.
func (s *Stage) Close() {
	if s.Controller != nil {
		s.Controller.Stop()
	}
	if s.Proxmox != nil {
		_ = s.Proxmox.WriteRequests(filepath.Join(s.Dir, "proxmox-requests.log")) // the log is optional
		s.Proxmox.Close()
	}
	if s.Guests != nil {
		s.Guests.Close()
	}
	if s.Plane != nil {
		s.Plane.Stop()
	}
}

// findBinary returns the absolute path of a binary. It fails if it was not built.
func findBinary(flag, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("--%s: %s not found; make demo builds it", flag, path)
	}
	return filepath.Abs(path)
}
