"""In a web app: pages, receivers and the tracker's life. Each framework is imported only by the module of its name.

Read `pages`, `routes`, then `aiohttp`, `starlette` or `django`; `referrer` stands alone.
"""

from payclient.notifications import notification_url
from payclient.web.pages import Page, is_waiting, redirect_page, sale_status, waiting_page

__all__ = ["Page", "is_waiting", "notification_url", "redirect_page", "sale_status", "waiting_page"]
