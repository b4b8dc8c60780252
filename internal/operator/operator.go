// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator reads the settings and creates the clients, providers and
// controllers of the Proxmox provider. OptionTable lists the settings, Load reads them
// and New creates the Operator.
package operator

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
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
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/consolidation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/fencing"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/node/registration"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/terminatefirst"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmupdate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeoverlay/evaluation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	templatecontroller "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template"
	templatebuild "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	templatechecksum "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/checksum"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

func init() { _ = v1alpha1.AddToScheme(scheme.Scheme) }

// connectTimeout limits how long startup waits for the Clusters, so an unreachable one
// does not block the others.
const connectTimeout = 15 * time.Second

// Operator is Karpenter's operator with the components of the Proxmox provider.
type Operator struct {
	*coreoperator.Operator
	Inventory     *inventory.Inventory
	Types         *instancetype.Provider
	Instances     *operations.Operations
	Templates     *template.Provider
	CloudProvider *cloudprovider.CloudProvider

	uncached client.Client
	settings Settings
	clients  map[string]proxmox.Client // by region
	kubeID   string
	roots    instance.RootClients
	boot     boot.Source
	metrics  instance.Metrics
}

// New returns an Operator with all components. A Cluster that does not respond is
// logged and retried; it does not prevent the start. New fails if the Kubernetes API
// server cannot be read or a setting is invalid.
func New(ctx context.Context, core *coreoperator.Operator, settings Settings) (*Operator, error) {
	o := &Operator{Operator: core, settings: settings}
	var err error
	if o.uncached, err = client.New(core.GetConfig(), client.Options{Scheme: core.GetScheme(), Mapper: core.GetRESTMapper()}); err != nil {
		return nil, fmt.Errorf("creating the Kubernetes client: %w", err)
	}
	kube, err := readKubeCluster(ctx, o.uncached, core.GetConfig(), core.Clock)
	if err != nil {
		return nil, err
	}
	clients, err := newClients(ctx, settings)
	if err != nil {
		return nil, err
	}
	roots, err := newRoots(ctx, settings)
	if err != nil {
		return nil, err
	}
	if err := o.addInventory(ctx, clients); err != nil {
		return nil, err
	}
	o.clients, o.kubeID = byRegion(clients), kube.id
	o.readSleeping(ctx)
	o.connect(ctx, clients)
	if err := o.addMaintenance(ctx); err != nil {
		return nil, err
	}
	if err := o.Add(&fencing.ConfigMap{
		Kube: o.uncached, Namespace: settings.Options.SystemNamespace, Config: o.GetConfig(), Inventory: o.Inventory, Recorder: o.EventRecorder, Clock: o.Clock,
	}); err != nil {
		return nil, fmt.Errorf("watching the fenced hosts: %w", err)
	}
	if err := o.addProviders(ctx, o.clients, roots, kube); err != nil {
		return nil, err
	}
	if err := plan.RegisterAddressPoolMetrics(crmetrics.Registry, core.GetClient(), o.Inventory); err != nil {
		return nil, fmt.Errorf("registering the metrics of address pools: %w", err)
	}
	if err := o.addWebPage(ctx, kube.id); err != nil {
		return nil, err
	}
	if err := core.AddReadyzCheck("proxmox", o.checkReady); err != nil {
		return nil, fmt.Errorf("adding the readiness check: %w", err)
	}
	return o, nil
}

// addInventory creates the inventory and adds it, and the watch of its settings file,
// to the manager.
func (o *Operator) addInventory(ctx context.Context, clients []proxmox.Client) error {
	opts := o.settings.Options
	var err error
	o.Inventory, err = inventory.New(clients, inventory.Options{
		PollInterval: opts.ProxmoxPollInterval, DetailRange: observed.VMIDRange{From: opts.ProxmoxVMID, To: opts.ProxmoxVMIDMax},
		Settings: o.settings.Hosts, Clock: o.Clock,
		Log: log.FromContext(ctx).WithName("inventory"), Registerer: crmetrics.Registry,
	})
	if err != nil {
		return err
	}
	if err := o.Add(o.Inventory); err != nil {
		return fmt.Errorf("adding the inventory: %w", err)
	}
	if opts.NodeSettingFile == "" {
		return nil
	}
	if err := o.Add(inventory.WatchSettings(o.Inventory, opts.NodeSettingFile)); err != nil {
		return fmt.Errorf("watching the host settings: %w", err)
	}
	return nil
}

// addMaintenance reads which Hosts are in maintenance and adds the watch of their ConfigMap
// to the manager. If the ConfigMap cannot be read, the watch retries it.
func (o *Operator) addMaintenance(ctx context.Context) error {
	hosts := &maintenance.ConfigMap{Namespace: o.settings.Options.SystemNamespace, Config: o.GetConfig(), Inventory: o.Inventory, Recorder: o.EventRecorder}
	if err := hosts.Read(ctx, o.uncached); err != nil {
		log.FromContext(ctx).Error(err, "reading the hosts in maintenance failed, retrying")
	}
	if err := o.Add(hosts); err != nil {
		return fmt.Errorf("watching the hosts in maintenance: %w", err)
	}
	return nil
}

// powerStore returns the records about Hosts that were shut down to save energy.
func (o *Operator) powerStore() power.Store {
	return power.Store{Kube: o.uncached, Namespace: o.settings.Options.SystemNamespace, KubeCluster: o.kubeID}
}

// readSleeping reads which Hosts were shut down to save energy, so controllers do not start with
// offline Hosts. The power controller of the leader reads it again.
func (o *Operator) readSleeping(ctx context.Context) {
	o.Inventory.SetSleepingOutdated(nil)
	if err := o.powerStore().Follow(ctx, o.Inventory); err != nil {
		log.FromContext(ctx).Error(err, "reading which hosts were shut down failed, retrying")
	}
}

// addProviders creates the providers of instance types, VMs and templates and
// Karpenter's cloud provider.
func (o *Operator) addProviders(ctx context.Context, clients map[string]proxmox.Client, roots map[string]proxmox.Root, kube kubeCluster) error {
	opts := o.settings.Options
	types := o.settings.InstanceTypes(o.Inventory, slices.Sorted(maps.Keys(roots)))
	types.Clock, types.Registerer = o.Clock, crmetrics.Registry
	var err error
	if o.Types, err = instancetype.New(types); err != nil {
		return err
	}
	o.roots = roots
	o.boot = boot.Source{
		Reader: o.uncached, Namespace: opts.SystemNamespace, Version: kube.version,
		Tokens: &bootdata.Tokens{Client: o.uncached, TTL: opts.JoinTokenTTL, Clock: o.Clock},
	}
	o.metrics = instance.NewMetrics(crmetrics.Registry)
	o.Instances = operations.New(instance.Deps{
		Overlays: o.InstanceTypeStore,
		Clients:  clients, RootClients: roots, Inventory: o.Inventory, Kube: o.GetClient(),
		Clock: clock.RealClock{}, KubeCluster: kube.id, Settings: opts.InstanceSettings(),
	}, o.Types, o.boot, o.metrics)
	o.Templates = template.NewProvider(template.Deps{
		Clients: clients, Inventory: o.Inventory, Clock: clock.RealClock{}, KubeCluster: kube.id, Recorder: o.EventRecorder,
		Settings:       opts.TemplateSettings(),
		RenderBootData: o.boot.PreparationImage,
	})
	o.CloudProvider = cloudprovider.New(cloudprovider.Deps{
		Operations: o.Instances, Settings: opts.CloudProviderSettings(), Kube: o.GetClient(), Types: o.Types, Recorder: o.EventRecorder,
		Clock: clock.RealClock{}, BootDataHash: o.boot.Hash, CapacityBuffers: coreoptions.FromContext(ctx).FeatureGates.CapacityBuffer,
	})
	return nil
}

// checkReady returns an error if no Cluster responds: the controller can do nothing
// then.
func (o *Operator) checkReady(*http.Request) error {
	view := o.Inventory.View()
	for _, region := range o.Inventory.Regions() {
		if view.Snapshots[region] != nil && view.Failures[region] == nil {
			return nil
		}
	}
	return fmt.Errorf("no Proxmox cluster is reachable: %s", strings.Join(o.Inventory.Regions(), ", "))
}

// Controllers returns the controllers of the Proxmox provider, without Karpenter's.
func (o *Operator) Controllers(cluster *state.Cluster) []controller.Controller {
	kube, opts := o.GetClient(), o.settings.Options
	oneWorker := status.WitMaxConcurrentReconciles(1) // there are few of these objects; the default is 10
	return []controller.Controller{
		nodeclass.NewController(kube, o.EventRecorder, nodeclass.Deps{
			Inventory: o.Inventory, Types: o.Types, RootClients: o.roots, Boot: o.boot,
			Health: o.Instances.Health, Clock: clock.RealClock{},
		}),
		evaluation.NewController(kube, o.CloudProvider, nodeoverlay.NewController(o.Clock, kube, o.CloudProvider, o.InstanceTypeStore, cluster)),
		unmanagedtemplate.NewController(kube, o.Inventory, o.EventRecorder),
		templatebuild.NewController(kube, o.Templates),
		templatecontroller.NewController(kube, o.Templates, o.EventRecorder, o.boot.CheckPreparation),
		templatechecksum.NewController(kube, o.Templates, o.EventRecorder, clock.RealClock{}, nil),
		launch.NewController(launch.Deps{
			Kube: kube, Launcher: o.Instances.Launcher, Health: o.Instances.Health, Types: o.Types, Recorder: o.EventRecorder,
			Pods: cluster.PodsMappedToNodeClaim, Clock: clock.RealClock{}, FailureBackoff: FailureBackoff(),
		}),
		vmupdate.NewController(kube, o.Instances.Updater, o.Instances.Adopter, o.Instances.Deleter, o.EventRecorder),
		consolidation.NewController(o.Inventory, cluster),
		maintenance.NewController(maintenance.Deps{
			Kube: kube, VMs: o.Instances.VMs, Inventory: o.Inventory, Recorder: o.EventRecorder, Clock: clock.RealClock{},
			Policy: opts.HostMaintenancePolicy, Timeout: opts.HostMaintenanceTimeout,
		}),
		power.NewController(power.Deps{
			Clients: o.clients, Inventory: o.Inventory, KubeCluster: o.kubeID, Store: o.powerStore(), Recorder: o.EventRecorder, Clock: o.Clock,
			Registerer: crmetrics.Registry, PendingTemplates: func(ctx context.Context) (map[observed.HostName][]string, error) {
				return templatebuild.HostsToKeepAwake(ctx, kube, o.Templates)
			},
		}),
		registration.NewController(registration.Deps{Kube: kube, Types: o.Types, VMs: o.Instances.VMs, Inventory: o.Inventory, Recorder: o.EventRecorder, Clock: o.Clock}),
		report.NewController(report.Deps{
			Kube: kube, VMs: o.Instances.VMs, Planner: o.Instances.Planner, Launches: o.Instances.Launches, Inventory: o.Inventory, Recorder: o.EventRecorder,
			Clock: clock.RealClock{}, Metrics: o.metrics, DescribeDrift: o.CloudProvider.DescribeDrift,
		}),
		terminatefirst.NewController(terminatefirst.Deps{
			Deps: scheduler.Deps{Kube: kube, Cluster: cluster, Recorder: o.EventRecorder, Clock: o.Clock}, Inventory: o.Inventory, Types: o.Types,
			CloudProvider: func(types *instancetype.Provider) corecloudprovider.CloudProvider {
				return overlay.Decorate(o.CloudProvider.WithTypes(types), kube, o.InstanceTypeStore)
			},
		}),
		explain.NewController(kube, o.Instances.Planner, o.EventRecorder, cluster),
		vmhealth.NewController(vmhealth.Deps{
			Kube: kube, VMs: o.Instances.VMs, Power: o.Instances.Power, Planner: o.Instances.Planner, Launches: o.Instances.Launches, Recorder: o.EventRecorder, Clock: clock.RealClock{},
			PollInterval: opts.ProxmoxPollInterval, Timeout: operationTimeout, Restarts: opts.RestartPolicy(),
		}),
		garbagecollection.NewController(garbagecollection.Deps{
			Kube: kube, Reader: o.uncached, VMs: o.Instances.VMs, Deleter: o.Instances.Deleter, Planner: o.Instances.Planner, Inventory: o.Inventory,
			Recorder: o.EventRecorder, Clock: clock.RealClock{}, Registerer: crmetrics.Registry,
			Rules: opts.OrphanRules(), PollInterval: opts.ProxmoxPollInterval,
		}),
		status.NewController[*v1alpha1.ProxmoxNodeClass](kube, o.GetEventRecorderFor("karpenter"), oneWorker),         //nolint:staticcheck // operatorpkg requires the deprecated recorder
		status.NewController[*v1alpha1.ProxmoxTemplate](kube, o.GetEventRecorderFor("karpenter"), oneWorker),          //nolint:staticcheck // operatorpkg requires the deprecated recorder
		status.NewController[*v1alpha1.ProxmoxUnmanagedTemplate](kube, o.GetEventRecorderFor("karpenter"), oneWorker), //nolint:staticcheck // operatorpkg requires the deprecated recorder
	}
}

// newClients returns a client of each Cluster.
func newClients(ctx context.Context, settings Settings) ([]proxmox.Client, error) {
	clients := make([]proxmox.Client, 0, len(settings.Cloud.Clusters))
	for _, cluster := range settings.Cloud.Clusters {
		c, err := proxmox.New(cluster, clientOptions(ctx, settings))
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func clientOptions(ctx context.Context, settings Settings) proxmox.Options {
	return proxmox.Options{
		DialTimeout: durationFor("dial-timeout", proxmox.DefaultDialTimeout), ResponseTimeout: settings.Options.ProxmoxResponseTimeout,
		Registerer: crmetrics.Registry, Log: log.FromContext(ctx).WithName("proxmox"),
	}
}

// connect polls every Cluster once, so controllers start with a Snapshot, and logs for
// each unusable Cluster the cause and the fix.
func (o *Operator) connect(ctx context.Context, clients []proxmox.Client) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var connecting sync.WaitGroup
	for _, c := range clients {
		connecting.Go(func() {
			if err := proxmox.Check(ctx, c); err != nil {
				log.FromContext(ctx).Error(err, "connecting to the Proxmox cluster failed, retrying",
					"region", c.Region(), "cloud-config", o.settings.Options.CloudConfig)
				return
			}
			_ = o.Inventory.Refresh(ctx, c.Region()) // the inventory logs its result
		})
	}
	connecting.Wait()
}

func byRegion(clients []proxmox.Client) map[string]proxmox.Client {
	out := make(map[string]proxmox.Client, len(clients))
	for _, c := range clients {
		out[c.Region()] = c
	}
	return out
}

// kubeCluster is the Kubernetes cluster: the UID of its namespace kube-system, which
// identifies its VMs, and the version of its API server.
type kubeCluster struct {
	id      string
	version boot.Version
}

func readKubeCluster(ctx context.Context, kube client.Reader, config *rest.Config, clock clock.PassiveClock) (kubeCluster, error) {
	namespace := &corev1.Namespace{}
	if err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return kubeCluster{}, fmt.Errorf("reading the UID of namespace %s, which identifies the VMs of this cluster: %w", metav1.NamespaceSystem, err)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return kubeCluster{}, fmt.Errorf("creating the discovery client: %w", err)
	}
	version, err := boot.NewServerVersion(c.Discovery(), clock)
	return kubeCluster{id: string(namespace.UID), version: version}, err
}
