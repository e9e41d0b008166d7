// SPDX-License-Identifier: GPL-2.0-or-later
//
// A bottleneck link in ns-3, to judge weir's simulator by. `weir-lab run judge-ns3` compiles and runs it.
//
//   ns3 queue DISCIPLINE BITS_PER_S SEED <arrivals >departures
//     ns-3's queueing discipline alone, before a link of that rate. A line that comes in: when a packet arrives (ns), its
//     flow, its length on the link (bytes). A line that goes out: the number of a packet, from 0, and when its transmission
//     begins (ns). Packets that do not appear were dropped.
//
//   ns3 tcp DISCIPLINE DOWN_BITS_PER_S UP_BITS_PER_S RTT_MS END_S SEED <connections >responses
//     ns-3's TCP through it. A line that comes in: when a connection opens (ns), full segments of its reply. A line that
//     goes out: ns until it was connected, ns until the reply was there, the server's smoothed round-trip time at the end
//     (ns); -1: that did not come about. The last line: packets that the downlink's queue has sent, and dropped.
//
// The parameters are those of weir_core::aqm::Setup.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint32_t FULL_BYTES = 1514;
constexpr uint32_t BUFFER_PACKETS = 100;
constexpr uint32_t SEGMENT_BYTES = 1448;
constexpr uint32_t REQUEST_BYTES = 100;
constexpr uint16_t PORT = 80;

[[noreturn]] void
Usage(const std::string& what)
{
    std::cerr << "ns3: error: " << what << std::endl;
    std::exit(2);
}

Ptr<QueueDisc>
MakeDiscipline(const std::string& name, uint64_t bitsPerS)
{
    ObjectFactory factory;
    // "At most a full packet behind it": ns-3 asks for less than this.
    Config::SetDefault("ns3::CoDelQueueDisc::MinBytes", UintegerValue(FULL_BYTES + 1));
    if (name == "fifo")
    {
        factory.SetTypeId("ns3::FifoQueueDisc");
        factory.Set("MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, BUFFER_PACKETS)));
    }
    else if (name == "codel")
    {
        factory.SetTypeId("ns3::CoDelQueueDisc");
        factory.Set("MaxSize", StringValue("1000p"));
    }
    else if (name == "fq-codel")
    {
        factory.SetTypeId("ns3::FqCoDelQueueDisc");
        factory.Set("MaxSize", StringValue("10240p"));
        factory.Set("UseEcn", BooleanValue(false));
    }
    else if (name == "pie")
    {
        factory.SetTypeId("ns3::PieQueueDisc");
        factory.Set("MaxSize", StringValue("1000p"));
        factory.Set("QueueDelayReference", StringValue("15ms"));
        factory.Set("Tupdate", StringValue("15ms"));
        factory.Set("MaxBurstAllowance", StringValue("150ms"));
        factory.Set("UseDerandomization", BooleanValue(true));
    }
    else if (name == "red")
    {
        const uint32_t limit = BUFFER_PACKETS * FULL_BYTES;
        factory.SetTypeId("ns3::RedQueueDisc");
        factory.Set("MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, limit)));
        factory.Set("MinTh", DoubleValue(limit / 12));
        factory.Set("MaxTh", DoubleValue(limit / 4));
        factory.Set("QW", DoubleValue(1.0 / 16));
        factory.Set("LInterm", DoubleValue(50));
        factory.Set("Wait", BooleanValue(false));
        factory.Set("Gentle", BooleanValue(false));
        factory.Set("MeanPktSize", UintegerValue(FULL_BYTES));
        factory.Set("LinkBandwidth", DataRateValue(DataRate(bitsPerS)));
    }
    else
    {
        Usage("no discipline " + name);
    }
    Ptr<QueueDisc> queue = factory.Create<QueueDisc>();
    if (Ptr<FqCoDelQueueDisc> flows = DynamicCast<FqCoDelQueueDisc>(queue))
    {
        flows->SetQuantum(FULL_BYTES);
    }
    return queue;
}

// A queueing discipline alone.

struct Arrival
{
    int64_t atNs;
    uint32_t flow;
    uint32_t bytes;
};

class NumberedItem : public Ipv4QueueDiscItem
{
  public:
    NumberedItem(Ptr<Packet> packet, const Ipv4Header& header, uint32_t number)
        : Ipv4QueueDiscItem(packet, Address(), Ipv4L3Protocol::PROT_NUMBER, header),
          m_number(number)
    {
    }

    uint32_t m_number;
};

class Transmitter
{
  public:
    Transmitter(Ptr<QueueDisc> queue, uint64_t bitsPerS, const std::vector<Arrival>& arrivals)
        : m_queue(queue),
          m_rate(bitsPerS),
          m_arrivals(arrivals)
    {
        ScheduleArrival(0);
    }

  private:
    // One arrival sets the next: the list of events stays short.
    void ScheduleArrival(size_t number)
    {
        if (number < m_arrivals.size())
        {
            const Time at = NanoSeconds(m_arrivals[number].atNs);
            Simulator::Schedule(at - Simulator::Now(), &Transmitter::Arrive, this, number);
        }
    }

    void Arrive(size_t number)
    {
        const Arrival& arrival = m_arrivals[number];
        TcpHeader tcp;
        tcp.SetSourcePort(PORT);
        tcp.SetDestinationPort(1024 + arrival.flow % 60000);
        Ipv4Header ip;
        ip.SetSource(Ipv4Address("10.0.0.1"));
        ip.SetDestination(Ipv4Address(0x0a010000 + arrival.flow / 60000));
        ip.SetProtocol(TcpL4Protocol::PROT_NUMBER);
        Ptr<Packet> packet =
            Create<Packet>(arrival.bytes - ip.GetSerializedSize() - tcp.GetSerializedSize());
        packet->AddHeader(tcp);
        ip.SetPayloadSize(packet->GetSize());
        m_queue->Enqueue(Create<NumberedItem>(packet, ip, number));
        ScheduleArrival(number + 1);
        if (!m_busy)
        {
            Free();
        }
    }

    void Free()
    {
        Ptr<QueueDiscItem> item = m_queue->Dequeue();
        m_busy = bool(item);
        if (!item)
        {
            return;
        }
        std::cout << DynamicCast<NumberedItem>(item)->m_number << ' '
                  << Simulator::Now().GetNanoSeconds() << '\n';
        const uint64_t took = uint64_t(item->GetSize()) * 1000000000 / (m_rate / 8);
        Simulator::Schedule(NanoSeconds(took), &Transmitter::Free, this);
    }

    Ptr<QueueDisc> m_queue;
    uint64_t m_rate;
    const std::vector<Arrival>& m_arrivals;
    bool m_busy{false};
};

void
RunQueue(const std::string& discipline, uint64_t bitsPerS)
{
    std::vector<Arrival> arrivals;
    Arrival arrival;
    while (std::cin >> arrival.atNs >> arrival.flow >> arrival.bytes)
    {
        arrivals.push_back(arrival);
    }
    Ptr<QueueDisc> queue = MakeDiscipline(discipline, bitsPerS);
    queue->Initialize();
    Transmitter transmitter(queue, bitsPerS, arrivals);
    // PIE's timer never ends; what waits then leaves within a minute.
    Simulator::Stop(NanoSeconds(arrivals.empty() ? 0 : arrivals.back().atNs) + Seconds(60));
    Simulator::Run();
    queue->Dispose();
    Simulator::Destroy();
}

// TCP.

struct Connection
{
    int64_t startNs;
    uint32_t segments;
    int64_t connectNs{-1};
    int64_t responseNs{-1};
    int64_t rttNs{-1};
    uint32_t received{0};
    Ptr<Socket> socket;
};

class Transfers
{
  public:
    Transfers(Ptr<Node> client, Ptr<Node> server, Ipv4Address address)
        : m_client(client),
          m_address(address)
    {
        m_listener = Socket::CreateSocket(server, TcpSocketFactory::GetTypeId());
        m_listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        m_listener->Listen();
        m_listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                      MakeCallback(&Transfers::Accepted, this));
        Connection connection;
        while (std::cin >> connection.startNs >> connection.segments)
        {
            m_connections.push_back(connection);
        }
        ScheduleStart(0);
    }

    void Print() const
    {
        for (const Connection& connection : m_connections)
        {
            std::cout << connection.connectNs << ' ' << connection.responseNs << ' '
                      << connection.rttNs << '\n';
        }
    }

  private:
    void ScheduleStart(size_t number)
    {
        if (number < m_connections.size())
        {
            const Time at = NanoSeconds(m_connections[number].startNs);
            Simulator::Schedule(at - Simulator::Now(), &Transfers::Start, this, number);
        }
    }

    void Start(size_t number)
    {
        Ptr<Socket> socket = Socket::CreateSocket(m_client, TcpSocketFactory::GetTypeId());
        socket->Bind();
        Address local;
        socket->GetSockName(local);
        m_numberOfPort[InetSocketAddress::ConvertFrom(local).GetPort()] = number;
        m_numberOf[socket] = number;
        m_connections[number].socket = socket;
        socket->SetConnectCallback(MakeCallback(&Transfers::Connected, this),
                                   MakeNullCallback<void, Ptr<Socket>>());
        socket->SetRecvCallback(MakeCallback(&Transfers::ReplyArrives, this));
        socket->SetCloseCallbacks(MakeCallback(&Transfers::PeerCloses, this),
                                  MakeCallback(&Transfers::PeerCloses, this));
        socket->Connect(InetSocketAddress(m_address, PORT));
        ScheduleStart(number + 1);
    }

    void Connected(Ptr<Socket> socket)
    {
        Connection& connection = m_connections[m_numberOf.at(socket)];
        connection.connectNs = Simulator::Now().GetNanoSeconds() - connection.startNs;
        socket->Send(Create<Packet>(REQUEST_BYTES));
    }

    void ReplyArrives(Ptr<Socket> socket)
    {
        Connection& connection = m_connections[m_numberOf.at(socket)];
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
            connection.received += packet->GetSize();
        }
        if (connection.responseNs < 0 &&
            connection.received >= connection.segments * SEGMENT_BYTES)
        {
            connection.responseNs = Simulator::Now().GetNanoSeconds() - connection.startNs;
        }
    }

    void PeerCloses(Ptr<Socket> socket)
    {
        socket->Close();
    }

    void Accepted(Ptr<Socket> socket, const Address& from)
    {
        const uint16_t port = InetSocketAddress::ConvertFrom(from).GetPort();
        Connection& connection = m_connections[m_numberOfPort.at(port)];
        m_replyOf[socket] = connection.segments;
        socket->SetRecvCallback(MakeCallback(&Transfers::RequestArrives, this));
        socket->TraceConnectWithoutContext("RTT",
                                           MakeBoundCallback(&Transfers::Measured, &connection));
    }

    void RequestArrives(Ptr<Socket> socket)
    {
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
        }
        auto reply = m_replyOf.find(socket);
        if (reply != m_replyOf.end())
        {
            socket->Send(Create<Packet>(reply->second * SEGMENT_BYTES));
            m_replyOf.erase(reply);
            socket->Close();
        }
    }

    static void Measured(Connection* connection, Time, Time rtt)
    {
        connection->rttNs = rtt.GetNanoSeconds();
    }

    Ptr<Node> m_client;
    Ipv4Address m_address;
    Ptr<Socket> m_listener;
    std::vector<Connection> m_connections;
    std::map<Ptr<Socket>, size_t> m_numberOf;
    std::map<uint16_t, size_t> m_numberOfPort;
    std::map<Ptr<Socket>, uint32_t> m_replyOf;
};

void
RunTcp(const std::string& discipline, uint64_t down, uint64_t up, uint64_t rttMs, double endS)
{
    // Hosts as weir_sim has them: today's Linux.
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpCubic::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT_BYTES));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 25));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 25));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));

    NodeContainer nodes(2);
    PointToPointHelper wire;
    // The device keeps one packet of its own; what waits is in the discipline.
    wire.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    wire.SetChannelAttribute("Delay", TimeValue(MilliSeconds(rttMs) / 2));
    NetDeviceContainer devices = wire.Install(nodes);
    const uint64_t rates[] = {down, up};
    InternetStackHelper().Install(nodes);
    Ptr<QueueDisc> queues[2];
    for (uint32_t side = 0; side < 2; side++)
    {
        devices.Get(side)->SetAttribute("DataRate", DataRateValue(DataRate(rates[side])));
        queues[side] = MakeDiscipline(side == 0 ? discipline : "fifo", rates[side]);
        nodes.Get(side)->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(
            devices.Get(side),
            queues[side]);
    }
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    Transfers transfers(nodes.Get(1), nodes.Get(0), interfaces.GetAddress(0));
    Simulator::Stop(Seconds(endS));
    Simulator::Run();
    transfers.Print();
    const QueueDisc::Stats stats = queues[0]->GetStats();
    std::cout << stats.nTotalDequeuedPackets << ' ' << stats.nTotalDroppedPackets << " 0\n";
    Simulator::Destroy();
}

} // namespace

int
main(int argc, char** argv)
{
    const std::vector<std::string> words(argv + 1, argv + argc);
    Time::SetResolution(Time::NS);
    std::ios::sync_with_stdio(false);
    if (words.size() == 4 && words[0] == "queue")
    {
        RngSeedManager::SetSeed(1 + std::stoul(words[3]) % 1000000);
        RunQueue(words[1], std::stoull(words[2]));
    }
    else if (words.size() == 7 && words[0] == "tcp")
    {
        RngSeedManager::SetSeed(1 + std::stoul(words[6]) % 1000000);
        RunTcp(words[1],
               std::stoull(words[2]),
               std::stoull(words[3]),
               std::stoull(words[4]),
               std::stod(words[5]));
    }
    else
    {
        Usage("see the head of ns3.cc");
    }
    return 0;
}
