// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator builds everything once: settings, clients, providers,
// controllers.
package operator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/capacity"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/node/registration"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/adoption"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/bootstrapcleanup"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/drift"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/inplace"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	nodeclasshash "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/hash"
	nodeclassstatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/termination"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	templatebuild "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	templatehash "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/hash"
	templatestatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/status"
	templatetermination "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/termination"
	unmanagedtemplatestatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

func init() { _ = v1alpha1.AddToScheme(scheme.Scheme) }

// firstContact bounds how long the start waits for the Clusters: one that is down
// must not keep the others from work.
const firstContact = 15 * time.Second

// Operator is Karpenter's operator with ours on top.
type Operator struct {
	*coreoperator.Operator
	Inventory     *inventory.Inventory
	Types         *instancetype.Provider
	Instances     *operations.Operations
	Templates     *template.Provider
	CloudProvider *cloudprovider.CloudProvider

	uncached client.Client
	settings Settings
	roots    instance.Roots
	boot     boot.Source
}

// New builds the Operator. A Cluster that does not answer is reported and tried
// again for ever; it does not keep the controller from starting.
func New(ctx context.Context, core *coreoperator.Operator, settings Settings) (*Operator, error) {
	o := &Operator{Operator: core, settings: settings}
	var err error
	if o.uncached, err = client.New(core.GetConfig(), client.Options{Scheme: core.GetScheme(), Mapper: core.GetRESTMapper()}); err != nil {
		return nil, fmt.Errorf("making the Kubernetes client, %w", err)
	}
	kubeCluster, err := kubeClusterID(ctx, o.uncached)
	if err != nil {
		return nil, err
	}
	version, err := serverVersion(core.GetConfig())
	if err != nil {
		return nil, err
	}
	clients, err := connect(ctx, settings)
	if err != nil {
		return nil, err
	}
	opts := settings.Options
	o.Inventory, err = inventory.New(clients, inventory.Options{
		Interval: opts.PollInterval, DetailRange: inventory.VMIDRange{From: opts.VMIDFrom, To: opts.VMIDTo},
		Settings: settings.Hosts, Clock: core.Clock,
		Log: log.FromContext(ctx).WithName("inventory"), Registerer: crmetrics.Registry,
	})
	if err != nil {
		return nil, err
	}
	o.greet(ctx, clients)
	roots, err := connectRoots(ctx, settings)
	if err != nil {
		return nil, err
	}
	o.Types, err = instancetype.New(instancetype.Deps{
		Inventory: o.Inventory, Catalog: settings.Catalog, Clock: core.Clock,
		VMMemoryOverhead: opts.VMMemoryOverheadPercent, Pricing: opts.Pricing, Devices: opts.PCIResources,
		VolumeLimits: opts.VolumeLimits, CPULayouts: cpuLayouts(opts.NodePolicy, roots), Registerer: crmetrics.Registry,
	})
	if err != nil {
		return nil, err
	}
	o.roots = roots
	o.boot = boot.Source{
		Reader: o.uncached, Namespace: opts.SystemNamespace, Version: version,
		Tokens: &bootdata.Tokens{Client: o.uncached, TTL: opts.JoinTokenTTL, Clock: core.Clock},
	}
	o.Instances = operations.New(instance.Deps{
		Clients: byRegion(clients), Roots: roots, Inventory: o.Inventory, Kube: core.GetClient(),
		Clock: clock.RealClock{}, KubeCluster: kubeCluster, Settings: opts.Instances(),
	}, o.Types, o.boot, instance.NewMetrics(crmetrics.Registry))
	o.Templates = template.NewProvider(template.Deps{
		Clients: byRegion(clients), Inventory: o.Inventory, Clock: clock.RealClock{}, KubeCluster: kubeCluster, Settings: opts.Templates(),
	})
	o.CloudProvider = cloudprovider.New(cloudprovider.Deps{
		Kube: core.GetClient(), VMs: o.Instances.VMs, Planner: o.Instances.Planner, Deleter: o.Instances.Deleter, Power: o.Instances.Power,
		Types: o.Types, Recorder: core.EventRecorder, Overlays: core.InstanceTypeStore, Clock: clock.RealClock{},
		MigratedDriftAfter: opts.MigratedDriftAfter, HostDriftAfter: opts.HostDriftAfter, Repair: opts.Repair,
	})
	if err := plan.RegisterAddressPoolMetrics(crmetrics.Registry, core.GetClient(), o.Inventory); err != nil {
		return nil, fmt.Errorf("registering the metrics of address pools, %w", err)
	}
	if err := core.Add(o.Inventory); err != nil {
		return nil, fmt.Errorf("adding the inventory, %w", err)
	}
	if opts.NodeSettingFile != "" {
		if err := core.Add(inventory.WatchSettings(o.Inventory, opts.NodeSettingFile)); err != nil {
			return nil, fmt.Errorf("watching the host settings, %w", err)
		}
	}
	if err := core.AddReadyzCheck("proxmox", o.answered); err != nil {
		return nil, fmt.Errorf("adding the readiness check, %w", err)
	}
	return o, nil
}

// answered is nil when at least one Cluster answers: without any the controller
// lives, but can do nothing.
func (o *Operator) answered(*http.Request) error {
	view := o.Inventory.View()
	for _, region := range o.Inventory.Regions() {
		if view.Snapshots[region] != nil && view.Failures[region] == nil {
			return nil
		}
	}
	return fmt.Errorf("none of the Proxmox clusters answers: %s", strings.Join(o.Inventory.Regions(), ", "))
}

// Controllers are ours, beside core's.
func (o *Operator) Controllers(cluster *state.Cluster) []controller.Controller {
	kube, opts := o.GetClient(), o.settings.Options
	return []controller.Controller{
		nodeclasshash.NewController(kube),
		nodeclassstatus.NewController(kube, nodeclassstatus.Deps{
			Inventory: o.Inventory, Types: o.Types, Roots: o.roots, Boot: o.boot,
			Health: o.Instances.Health, CloneTimes: o.Instances.CloneTimes, Clock: clock.RealClock{},
		}),
		termination.NewController(kube, o.EventRecorder),
		unmanagedtemplatestatus.NewController(kube, o.Inventory, o.EventRecorder),
		templatebuild.NewController(kube, o.Templates),
		templatestatus.NewController(kube, o.Templates),
		templatehash.NewManaged(kube),
		templatehash.NewUnmanaged(kube),
		templatetermination.NewManaged(kube, o.Templates, o.EventRecorder),
		templatetermination.NewUnmanaged(kube, o.EventRecorder),
		launch.NewController(launch.Deps{
			Kube: kube, Launcher: o.Instances.Launcher, Health: o.Instances.Health, Types: o.Types, Recorder: o.EventRecorder,
			Pods: cluster.PodsMappedToNodeClaim, Clock: clock.RealClock{}, FailureBackoff: opts.FailureBackoff,
		}),
		bootstrapcleanup.NewController(o.Instances.Deleter),
		adoption.NewController(o.Instances.Adopter, o.EventRecorder),
		capacity.NewController(o.Inventory, cluster),
		registration.NewController(kube, o.EventRecorder, o.Clock),
		drift.NewController(kube, o.Instances.Planner, o.EventRecorder, clock.RealClock{}),
		explain.NewController(kube, o.Instances.Planner, o.EventRecorder, cluster),
		inplace.NewController(kube, o.Instances.Updater, o.EventRecorder),
		vmhealth.NewController(vmhealth.Deps{
			Kube: kube, VMs: o.Instances.VMs, Power: o.Instances.Power, Planner: o.Instances.Planner, Recorder: o.EventRecorder, Clock: clock.RealClock{},
			Interval: opts.PollInterval, Timeout: opts.OperationTimeout, Restarts: opts.Restarts,
		}),
		garbagecollection.NewController(garbagecollection.Deps{
			Kube: kube, Reader: o.uncached, VMs: o.Instances.VMs, Deleter: o.Instances.Deleter, Planner: o.Instances.Planner, Inventory: o.Inventory,
			Tokens: o.boot.Tokens, Recorder: o.EventRecorder, Clock: clock.RealClock{}, Registerer: crmetrics.Registry, Rules: opts.Orphans, Interval: opts.PollInterval,
		}),
		status.NewController[*v1alpha1.ProxmoxNodeClass](kube, o.GetEventRecorderFor("karpenter")),         //nolint:staticcheck // operatorpkg takes the older recorder
		status.NewController[*v1alpha1.ProxmoxTemplate](kube, o.GetEventRecorderFor("karpenter")),          //nolint:staticcheck // operatorpkg takes the older recorder
		status.NewController[*v1alpha1.ProxmoxUnmanagedTemplate](kube, o.GetEventRecorderFor("karpenter")), //nolint:staticcheck // operatorpkg takes the older recorder
	}
}

// connect makes a client per Cluster.
func connect(ctx context.Context, settings Settings) ([]proxmox.Client, error) {
	clients := make([]proxmox.Client, 0, len(settings.Cloud.Clusters))
	for _, cluster := range settings.Cloud.Clusters {
		c, err := proxmox.New(cluster, proxmox.Options{
			DialTimeout: settings.Options.DialTimeout, ResponseTimeout: settings.Options.ResponseTimeout,
			Registerer: crmetrics.Registry, Log: log.FromContext(ctx).WithName("proxmox"),
		})
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// greet reads every Cluster once, so that controllers begin with a view instead of
// complaints that there is none, and says in one line each which of them cannot be
// used and how to mend it.
func (o *Operator) greet(ctx context.Context, clients []proxmox.Client) {
	ctx, cancel := context.WithTimeout(ctx, firstContact)
	defer cancel()
	var greeting sync.WaitGroup
	for _, c := range clients {
		greeting.Go(func() {
			if err := proxmox.Check(ctx, c); err != nil {
				log.FromContext(ctx).Error(err, "the Proxmox cluster cannot be used yet; it will be tried again",
					"region", c.Region(), "cloud-config", o.settings.Options.CloudConfig)
				return
			}
			_ = o.Inventory.Refresh(ctx, c.Region()) // the inventory tells how it went
		})
	}
	greeting.Wait()
}

func byRegion(clients []proxmox.Client) map[string]proxmox.Client {
	out := make(map[string]proxmox.Client, len(clients))
	for _, c := range clients {
		out[c.Region()] = c
	}
	return out
}

// kubeClusterID tells this Kubernetes cluster from others on the same Proxmox.
func kubeClusterID(ctx context.Context, kube client.Reader) (string, error) {
	namespace := &corev1.Namespace{}
	if err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s, by which VMs of this cluster are told from others', %w", metav1.NamespaceSystem, err)
	}
	return string(namespace.UID), nil
}

func serverVersion(config *rest.Config) (string, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("making the discovery client, %w", err)
	}
	info, err := c.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("reading the API server's version, %w", err)
	}
	return info.GitVersion, nil
}
