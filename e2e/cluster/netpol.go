package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/cobra"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// newNetworkPolicyCommand runs kube-router's firewall alone (iptables and ipset of the network namespace it stands in): what enforces
// NetworkPolicy on one node. Its router and service proxy are left out: the nodes have static routes and kube-proxy.
func newNetworkPolicyCommand() *cobra.Command {
	var kubeconfig, node string
	var services []string
	command := &cobra.Command{
		Use:          "kube-netpol",
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			return enforceNetworkPolicies(command.Context().Done(), kubeconfig, node, services)
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "file with the API server's address and credentials")
	command.Flags().StringVar(&node, "hostname-override", "", "name of this node")
	command.Flags().StringSliceVar(&services, "service-cluster-ip-range", []string{"10.96.0.0/16"}, "addresses of Services, of each family")
	return command
}

func enforceNetworkPolicies(stop <-chan struct{}, kubeconfig, node string, services []string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.ClusterIPCIDRs = services
	config.EnableIPv4, config.EnableIPv6 = false, false
	for _, cidr := range services {
		if strings.Contains(cidr, ":") {
			config.EnableIPv6 = true
		} else {
			config.EnableIPv4 = true
		}
	}
	config.HostnameOverride = node
	config.IPTablesSyncPeriod = time.Minute

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets)
	if err != nil {
		return fmt.Errorf("network policies of node %q: %w", node, err)
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, namespaces: controller.NamespaceEventHandler, policies: controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	heartbeats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range heartbeats { // the controller blocks on a full channel
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(heartbeats, stop, &running)
	return nil
}
