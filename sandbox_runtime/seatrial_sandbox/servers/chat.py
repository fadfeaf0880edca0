"""MCP server `chat`: read and write in the channels of the workspace's folder `chat`."""

from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.chat_files import ChatStore, Post
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_Channel = Annotated[str, Field(description="Channel, as list_channels shows it.")]
_Id = Annotated[str, Field(description="Id of a post, such as 'general/12'.")]
_Text = Annotated[str, Field(description="What to write.", min_length=1, max_length=40_000)]


class ChatTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._store = ChatStore(workspace)

    def list_channels(self) -> str:
        """List the channels with their topics and members."""
        return "\n".join(
            f"{channel.name}: {channel.topic or '(no topic)'} [{', '.join(channel.members)}]"
            for channel in self._store.channels()
        )

    def get_channel_history(
        self,
        channel: _Channel,
        count: Annotated[int, Field(description="How many of the newest posts.", ge=1, le=1000)] = 50,
        before: Annotated[str | None, Field(description="Only posts older than this one.")] = None,
    ) -> str:
        """Read a channel, oldest first; answers in threads are counted, not shown."""
        posts = self._store.posts(channel)
        roots = [post for post in posts if post.thread is None]
        if before is not None:
            where, _, limit = self._store.find(before)
            if where != channel:
                raise ToolError(f"{before} is not in {channel}")
            roots = [post for post in roots if post.id < limit.id]
        answers = {post.id: sum(other.thread == post.id for other in posts) for post in roots}
        more = len(roots) - count
        lines = [f"[{more} older posts; give the oldest id as before]"] if more > 0 else []
        lines += [_line(channel, post, answers[post.id]) for post in roots[-count:]]
        return "\n".join(lines) or "nobody has written here"

    def get_thread_replies(self, post_id: _Id) -> str:
        """Read a post and all answers to it."""
        channel, posts, root = self._store.find(post_id)
        replies = [post for post in posts if post.thread == root.id]
        return "\n".join(_line(channel, post) for post in [root, *replies])

    def search_messages(
        self,
        query: Annotated[str, Field(description="Text to find; case does not matter.", min_length=1)],
        channel: Annotated[str | None, Field(description="Channel to search; all of them if left out.")] = None,
    ) -> str:
        """Find posts and answers that hold a text."""
        names = [channel] if channel is not None else [known.name for known in self._store.channels()]
        found = [
            _line(name, post)
            for name in names
            for post in self._store.posts(name)
            if query.lower() in post.text.lower()
        ]
        return "\n".join(found) or f"nothing matches {query!r}"

    def get_users(self) -> str:
        """List everybody with id, name and title."""
        return "\n".join(
            f"{user.id}: {user.name}{', ' + user.title if user.title else ''}{' (you)' if user.me else ''}"
            for user in self._store.users()
        )

    def get_user_profile(self, user: Annotated[str, Field(description="Id, as get_users shows it.")]) -> str:
        """Tell all that is known of somebody."""
        users = {known.id: known for known in self._store.users()}
        if user not in users:
            raise ToolError(f"there is no user {user!r}; the users are: {', '.join(users)}")
        facts = users[user].model_dump(exclude={"me"})
        return "\n".join(f"{name}: {value}" for name, value in facts.items() if value)

    def post_message(self, channel: _Channel, text: _Text) -> str:
        """Write in a channel."""
        return f"posted {self._store.add(channel, text)}"

    def reply_to_thread(self, post_id: _Id, text: _Text) -> str:
        """Answer a post in its thread."""
        channel, _, post = self._store.find(post_id)
        return f"posted {self._store.add(channel, text, post.thread or post.id)}"

    def add_reaction(
        self,
        post_id: _Id,
        reaction: Annotated[str, Field(description="Name of the reaction, such as 'thumbsup'.", pattern=r"^[\w+-]+$")],
    ) -> str:
        """React to a post."""
        channel, posts, post = self._store.find(post_id)
        people = post.reactions.setdefault(reaction, [])
        if (me := self._store.me()) in people:
            raise ToolError(f"you have reacted to {post_id} with {reaction!r} already")
        post.reactions[reaction] = [*people, me]
        self._store.write(channel, posts)
        return f"reacted to {post_id} with {reaction}"

    def delete_post(self, post_id: _Id) -> str:
        """Delete a post of your own, with the answers to it."""
        channel, posts, post = self._store.find(post_id)
        if post.user != self._store.me():
            raise ToolError(f"{post_id} is a post of {post.user}; only your own can be deleted")
        left = [other for other in posts if post.id not in {other.id, other.thread}]
        self._store.write(channel, left)
        return f"deleted {post_id}"


def build(workspace: Workspace) -> ToolServer:
    """The server `chat` over a workspace."""
    server = ToolServer("chat", "Reads and writes in the team's chat.")
    tools = ChatTools(workspace)
    server.expose(tools.list_channels)
    server.expose(tools.get_channel_history, advice="ask for fewer posts")
    for tool in (
        tools.get_thread_replies,
        tools.search_messages,
        tools.get_users,
        tools.get_user_profile,
        tools.post_message,
        tools.reply_to_thread,
        tools.add_reaction,
        tools.delete_post,
    ):
        server.expose(tool)
    return server


def _line(channel: str, post: Post, answers: int = 0) -> str:
    notes = f" [{answers} answers]" if answers else ""
    notes += "".join(f" :{name}: {len(people)}" for name, people in post.reactions.items())
    kept = f" (answers {channel}/{post.thread})" if post.thread is not None else ""
    return f"{channel}/{post.id}{kept} | {post.time:%Y-%m-%d %H:%M} | {post.user}: {post.text}{notes}"
